(function () {
  "use strict";
  function each(list, f) { Array.prototype.forEach.call(list, f); }

  function value(body, column) {
    var cell = body.rows[0].cells[column];
    var text = cell.getAttribute("data-v") || cell.textContent;
    text = text.trim().replace(/\u2212/g, "-");
    if (/^<\s/.test(text)) { return 0; }
    var number = parseFloat(text.replace(/,/g, ""));
    return isNaN(number) || !/^[-\d]/.test(text) ? text.toLowerCase() : number;
  }

  function missing(v) { return v === "" || v === "\u2013" || v === "n/e" || v === "tied"; }

  function sort(table, column, descending) {
    var bodies = Array.prototype.slice.call(table.tBodies);
    var keyed = bodies.map(function (body, i) { return { body: body, v: value(body, column), i: i }; });
    keyed.sort(function (a, b) {
      var am = missing(a.v), bm = missing(b.v);
      if (am !== bm) { return am ? 1 : -1; }
      var order = typeof a.v === "number" && typeof b.v === "number" ? a.v - b.v : String(a.v).localeCompare(String(b.v));
      return order ? (descending ? -order : order) : a.i - b.i;
    });
    keyed.forEach(function (k) { table.appendChild(k.body); });
  }

  function sortable(table) {
    var heads = table.tHead.rows[0].cells;
    each(heads, function (head, column) {
      if (head.hasAttribute("data-nosort")) { return; }
      var button = document.createElement("button");
      button.type = "button";
      while (head.firstChild) { button.appendChild(head.firstChild); }
      head.appendChild(button);
      button.addEventListener("click", function () {
        var descending = head.getAttribute("aria-sort") === "ascending";
        each(heads, function (h) { h.removeAttribute("aria-sort"); });
        head.setAttribute("aria-sort", descending ? "descending" : "ascending");
        sort(table, column, descending);
      });
    });
  }

  function labelled(box, text, control) {
    var label = document.createElement("label");
    label.appendChild(document.createTextNode(text));
    label.appendChild(control);
    box.appendChild(label);
    return control;
  }

  function filterable(box) {
    var table = document.getElementById(box.getAttribute("data-for"));
    var bodies = Array.prototype.slice.call(table.tBodies);
    var search = labelled(box, "Show rows with the words", document.createElement("input"));
    search.type = "search";
    var choices = [];
    each(table.tHead.rows[0].cells, function (head, column) {
      var name = head.getAttribute("data-filter");
      if (!name) { return; }
      var seen = {}, texts = [];
      bodies.forEach(function (body) {
        var text = body.rows[0].cells[column].getAttribute("data-f") || body.rows[0].cells[column].textContent.trim();
        if (!Object.prototype.hasOwnProperty.call(seen, text)) { seen[text] = true; texts.push(text); }
      });
      if (texts.length < 2) { return; }
      var select = labelled(box, name, document.createElement("select"));
      select.appendChild(new Option("all", ""));
      texts.forEach(function (text) { select.appendChild(new Option(text, text)); });
      choices.push({ column: column, select: select });
    });
    var output = document.createElement("output");
    output.setAttribute("aria-live", "polite");
    box.appendChild(output);
    function apply() {
      var words = search.value.toLowerCase().split(/\s+/).filter(Boolean), shown = 0;
      bodies.forEach(function (body) {
        var text = body.rows[0].textContent.toLowerCase();
        var keep = words.every(function (word) { return text.indexOf(word) >= 0; }) && choices.every(function (c) {
          var cell = body.rows[0].cells[c.column];
          return !c.select.value || (cell.getAttribute("data-f") || cell.textContent.trim()) === c.select.value;
        });
        body.hidden = !keep;
        shown += keep ? 1 : 0;
      });
      output.textContent = shown + " of " + bodies.length + " rows";
    }
    search.addEventListener("input", apply);
    choices.forEach(function (c) { c.select.addEventListener("change", apply); });
    box.hidden = false;
    apply();
  }

  each(document.querySelectorAll("table.sort"), sortable);
  each(document.querySelectorAll(".filters"), filterable);

  var opened = [];
  window.addEventListener("beforeprint", function () {
    opened = Array.prototype.filter.call(document.querySelectorAll("details:not(.bulk)"), function (d) { return !d.open; });
    opened.forEach(function (d) { d.open = true; });
  });
  window.addEventListener("afterprint", function () {
    opened.forEach(function (d) { d.open = false; });
  });
  document.documentElement.setAttribute("data-ready", "true");
})();
