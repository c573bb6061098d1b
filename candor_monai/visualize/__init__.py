"""Tables, figures and the report."""

from ..utils.lazy import lazy_attributes

__getattr__, __dir__ = lazy_attributes(
    __name__,
    {
        "read_results": "results_files",
        "results_schema": "results_files",
        "validate_results": "results_files",
        "write_csv": "csv_files",
        "write_figures": "figures",
        "write_neighbour_figures": "neighbour_figures",
        "write_paper_tables": "paper_tables",
        "write_report": "report",
        "write_results": "results_files",
    },
)
