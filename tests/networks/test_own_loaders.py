"""Anyone's own encoder: the cards of docs/own_encoder.md, each loaded for real, and what can be wrong with them."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import json
import pickle
import re
import zipfile

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from candor_monai.networks import bundled_encoder, check_encoder, export_encoder_bundle
from candor_monai.networks.cards import load_card
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.probes import noise_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.test_processors import CLIP, IMAGENET, TIMM
from tests.support import ROOT

DOCUMENTED = dict(
    re.findall(r"```yaml\n# card: (\S+)\n(.*?)```", (ROOT / "docs" / "own_encoder.md").read_text(), flags=re.S)
)


@pytest.fixture
def card_file(tmp_path):
    """Write a documented card and give its path."""

    def write(name):
        path = tmp_path / name
        path.write_text(DOCUMENTED[name])
        return path

    return write


def _passes(encoder):
    """Every check but those that random weights or a bare folder cannot pass."""
    bad = [r for r in check_encoder(encoder) if r.status == "failed"]
    assert bad == []


def test_every_documented_card_is_tried():
    assert sorted(DOCUMENTED) == [
        "dinov2_small.yaml",
        "exported.yaml",
        "our_bundle.yaml",
        "our_clip.yaml",
        "our_module.yaml",
        "timm_resnet18.yaml",
    ]


def test_timm(card_file, tmp_path):
    import timm

    model = timm.create_model("resnet18", num_classes=1000).eval()
    folder = tmp_path / "timm_resnet18"
    folder.mkdir()
    save_file(model.state_dict(), folder / "model.safetensors")
    config = {**TIMM["random_vit_l"], "crop_pct": 0.95}
    (folder / "config.json").write_text(json.dumps({"architecture": "resnet18", "pretrained_cfg": config}))
    encoder = load_encoder(card_file("timm_resnet18.yaml"), weights_dir=tmp_path)
    assert encoder.processor.card.size == 235
    images = noise_image()
    with torch.no_grad():
        expected = model.forward_head(model.forward_features(encoder.processor(images)), pre_logits=True)
    assert torch.equal(encoder(images), expected)
    _passes(encoder)


def test_transformers(card_file, tmp_path):
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=384, num_hidden_layers=2, num_attention_heads=6, image_size=518, patch_size=14
    )
    model = transformers.Dinov2Model(config).eval()
    folder = tmp_path / "dinov2_small"
    model.save_pretrained(folder)
    processor = {"image_processor_type": "BitImageProcessor", "size": {"shortest_edge": 256}, "crop_size": 224}
    processor |= {"image_mean": IMAGENET[0], "image_std": IMAGENET[1]}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    encoder = load_encoder(card_file("dinov2_small.yaml"), weights_dir=tmp_path)
    images = noise_image()
    with torch.no_grad():
        expected = model(pixel_values=encoder.processor(images)).last_hidden_state[:, 0]
    assert torch.equal(encoder(images), expected)
    assert encoder.processor.card.crop == 224
    _passes(encoder)


def test_transformers_reads_no_other_file_than_the_one_that_was_checked(tmp_path):
    import transformers

    config = transformers.Dinov2Config(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, image_size=56, patch_size=14
    )
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "ours.safetensors")
    transformers.Dinov2Model(config).save_pretrained(tmp_path)
    digest = hashlib.sha256((tmp_path / "ours.safetensors").read_bytes()).hexdigest()
    card = {"name": "x", "loader": "transformers", "architecture": "Dinov2Model", "folder": str(tmp_path)}
    card |= {"processor": {"size": 56}, "feature_point": "cls", "dimension": 32}
    with pytest.raises(WeightsError, match=r"ours\.safetensors: transformers reads model\.safetensors or"):
        load_encoder({**card, "files": ["ours.safetensors"], "sha256": digest})
    assert load_encoder({**card, "files": ["model.safetensors"]}).dimension == 32


def test_open_clip(card_file, tmp_path):
    from open_clip.model import CLIP as OpenClip

    config = {
        "embed_dim": 512,
        "vision_cfg": {"image_size": 224, "layers": 1, "width": 64, "patch_size": 32},
        "text_cfg": {"context_length": 8, "vocab_size": 99, "width": 32, "heads": 2, "layers": 1},
    }
    model = OpenClip(**config).eval()
    folder = tmp_path / "our_clip"
    folder.mkdir()
    save_file(model.state_dict(), folder / "open_clip_model.safetensors")
    stated = {"model_cfg": config, "preprocess_cfg": {"size": [224, 224], "mean": CLIP[0], "std": CLIP[1]}}
    (folder / "open_clip_config.json").write_text(json.dumps(stated))
    encoder = load_encoder(card_file("our_clip.yaml"))
    images = noise_image()
    with torch.no_grad():
        assert torch.equal(encoder(images), model.encode_image(encoder.processor(images)))
    assert encoder.provenance["weights"] == "folder of the card"
    _passes(encoder)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 64, 16, 16), nn.ReLU())

    def forward(self, x):
        return self.body(x).mean((2, 3))


def _export(model, path):
    program = torch.export.export(
        model.eval(), (torch.rand(2, 3, 224, 224),), dynamic_shapes=({0: torch.export.Dim("batch")},)
    )
    path.parent.mkdir(exist_ok=True)
    torch.export.save(program, path)


def test_exported_program(card_file, tmp_path):
    model = Small()
    _export(model, tmp_path / "exported" / "model.pt2")
    encoder = load_encoder(card_file("exported.yaml"))
    images = torch.cat([noise_image(seed=s) for s in range(3)])
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), model(encoder.processor(images)))
    assert len(encoder.fingerprint["weights"]) == 64
    with torch.no_grad():
        model.body[0].bias += 1
    _export(model, tmp_path / "exported" / "model.pt2")
    assert load_encoder(tmp_path / "exported.yaml").fingerprint["weights"] != encoder.fingerprint["weights"]
    _passes(encoder)


class _Runs:
    """What a pickle of it does when it is read."""

    def __init__(self, path):
        self.path = str(path)

    def __reduce__(self):
        return exec, (f"open({self.path!r}, 'w').close()",)


def _pickled(value):
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def _edited(content, name, change):
    document = json.loads(content[name])
    change(document)
    content[name] = json.dumps(document).encode()


def _pickles_weights(content, runs):
    _edited(content, WEIGHTS, lambda d: next(iter(d["config"].values())).update(use_pickle=True))


def _pickles_inputs(content, runs):
    content["model/data/sample_inputs/model.pt"] = _pickled(runs)


def _scripts_inputs(content, runs):
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(nn.ReLU()), file)
    content["model/data/sample_inputs/model.pt"] = file.getvalue()


def _pickles_older_weights(content, runs):
    content["model/data/weights/model.pt"] = _pickled(runs)


def _pickles_older_constants(content, runs):
    content["model/data/constants/model.pt"] = _pickled(runs)


def _pickles_an_object(content, runs):
    meta = next(iter(json.loads(content[WEIGHTS])["config"].values()))["tensor_meta"]
    entry = {"path_name": "opaque_obj_0", "is_param": False, "use_pickle": False, "tensor_meta": meta}
    content["model/data/constants/opaque_obj_0"] = pickle.dumps(runs)
    _edited(content, WEIGHTS.replace("weights", "constants"), lambda d: d["config"].update(o=entry))


def _compiled_library(content, runs):
    content["model/data/aotinductor/model/model.so"] = b"ELF"


def _other_letter_case(content, runs):
    content["model/data/Weights/model_weights_config.json"] = content[WEIGHTS]


def _calls_python(content, runs):
    _edited(content, GRAPH, lambda d: d["graph_module"]["graph"]["nodes"][0].update(target="torch.hub.load"))


def _opens_a_file(content, runs):
    nodes = {"target": "torch.ops.aten.from_file.default"}
    _edited(content, GRAPH, lambda d: d["graph_module"]["graph"]["nodes"][0].update(nodes))


def _loads_a_library(content, runs):
    nodes = {"target": "torch.ops.load_library"}
    _edited(content, GRAPH, lambda d: d["graph_module"]["graph"]["nodes"][0].update(nodes))


def _names_that_are_code(content, runs):
    content[GRAPH] = re.sub(rb'"name": ?"x"', f'"name": "x=open({runs.path!r})"'.encode(), content[GRAPH])


def _sizes_that_are_code(content, runs):
    content[GRAPH] = re.sub(rb"Symbol\([^)]*\)", b"exec(chr(49))", content[GRAPH])


def _guards_that_are_code(content, runs):
    _edited(content, GRAPH, lambda d: d.update(guards_code=["L['x'].size()[0] == open('x')"]))


def _guards_that_escape(content, runs):
    _edited(content, GRAPH, lambda d: d.update(guards_code=["L['x'].__class__"]))


ATTACKS = {
    _pickles_weights: "pickled objects",
    _pickles_inputs: "pickled objects .data/sample_inputs/model.pt",
    _scripts_inputs: "pickled objects .data/sample_inputs/model.pt",
    _pickles_older_weights: "entry 'data/weights/model.pt'",
    _pickles_older_constants: "entry 'data/constants/model.pt'",
    _pickles_an_object: "entry 'data/constants/opaque_obj_0'",
    _compiled_library: "entry 'data/aotinductor/model/model.so'",
    _other_letter_case: "entry 'data/Weights/model_weights_config.json'",
    _calls_python: "operation 'torch.hub.load'",
    _opens_a_file: "operation 'torch.ops.aten.from_file.default'",
    _loads_a_library: "operation 'torch.ops.load_library'",
    _names_that_are_code: "name .x=open",
    _sizes_that_are_code: "expression 'exec",
    _guards_that_are_code: "a guard that is no comparison",
    _guards_that_escape: "a guard that is no comparison",
}
WEIGHTS, GRAPH = "model/data/weights/model_weights_config.json", "model/models/model.json"


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    path = tmp_path_factory.mktemp("exported") / "model.pt2"
    _export(Small(), path)
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: attack.__name__)
def test_exported_program_that_could_run_code_is_refused(attack, exported, card_file, tmp_path):
    content, ran = dict(exported), tmp_path / "ran"
    attack(content, _Runs(ran))
    path = tmp_path / "exported" / "model.pt2"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for key, value in content.items():
            archive.writestr(key, value)
    with pytest.raises(WeightsError, match=rf"model\.pt2: holds .*{ATTACKS[attack]}.* is not loaded"):
        load_encoder(card_file("exported.yaml"))
    assert not ran.exists()


@pytest.mark.parametrize(
    "content,words",
    [
        (b"", "the file is empty"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
        (b"no program", "not an exported program"),
        (None, "an exported program"),
    ],
)
def test_damaged_exported_program(content, words, card_file, tmp_path):
    path = tmp_path / "exported" / "model.pt2"
    _export(Small(), path)
    path.write_bytes(path.read_bytes()[:-200] if content is None else content)
    with pytest.raises(WeightsError, match=rf"model\.pt2.*{words}"):
        load_encoder(card_file("exported.yaml"))


@pytest.mark.parametrize("config", [b"[]", b"{}", b'{"config": [1]}', b'{"config": {"a": 1}}', b"[" * 100_000, b"\xff"])
def test_exported_program_with_a_broken_list_of_tensors(config, exported, card_file, tmp_path):
    path = tmp_path / "exported" / "model.pt2"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        for name, content in exported.items():
            archive.writestr(name, config if name == WEIGHTS else content)
    with pytest.raises(WeightsError, match=r"model\.pt2: not an exported program") as caught:
        load_encoder(card_file("exported.yaml"))
    assert "\n" not in str(caught.value)


def test_exported_program_with_an_endless_list_of_tensors(exported, card_file, tmp_path):
    path = tmp_path / "exported" / "model.pt2"
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in exported.items():
            archive.writestr(name, bytes(65 << 20) if name == WEIGHTS else content)
    with pytest.raises(WeightsError, match=r"a text of more than 67108864 bytes"):
        load_encoder(card_file("exported.yaml"))


def test_module(card_file, tmp_path):
    from torchvision.models import resnet18

    model = resnet18(num_classes=14).eval()
    (tmp_path / "our_module").mkdir()
    torch.save(model.state_dict(), tmp_path / "our_module" / "weights.pt")
    encoder = load_encoder(card_file("our_module.yaml"))
    images = noise_image()
    seen = []
    model.avgpool.register_forward_hook(lambda module, args, output: seen.append(output))
    with torch.no_grad():
        model(encoder.processor(images))
    assert torch.equal(encoder(images), seen[0].flatten(1))
    _passes(encoder)


def test_module_without_weights():
    card = {
        "name": "pixels",
        "loader": "module",
        "target": "torch.nn.AdaptiveAvgPool2d",
        "kwargs": {"output_size": 1},
        "feature_point": "pooled",
        "dimension": 3,
        "licence": "none",
    }
    encoder = load_encoder(card)
    images = noise_image()
    torch.testing.assert_close(encoder(images), encoder.processor(images).mean((2, 3)))


@pytest.mark.parametrize(
    "change,words",
    [
        ({"target": "no_such_package.Encoder"}, "cannot be imported"),
        ({"target": "torch.nn.NoSuchLayer"}, "cannot be imported"),
        ({"target": "Encoder"}, "cannot be imported"),
        ({"target": "collections.OrderedDict", "kwargs": {}}, r"must give a torch\.nn\.Module"),
        ({"kwargs": {"no_such": 1}}, "cannot build"),
        ({"kwargs": {"output_size": 1, "layer": "body"}}, "unknown layer 'body'"),
        ({"dimension": 4}, r"gives a feature of shape \(1, 3\)"),
        ({"kwargs": {"output_size": 1, "output": 7}}, "cannot encode a test image"),
    ],
)
def test_mistakes_in_a_module_card(change, words):
    card = {
        "name": "pixels",
        "loader": "module",
        "target": "torch.nn.AdaptiveAvgPool2d",
        "kwargs": {"output_size": 1},
        "feature_point": "pooled",
        "dimension": 3,
    }
    with pytest.raises(UserError, match=words):
        load_encoder({**card, **change})


def _factory_that_cannot_be_built_without_memory():
    model = nn.Conv2d(3, 4, 16, 16, bias=False)
    with torch.no_grad():
        model.weight[:, :, 0, 0] = float(model.weight.norm())  # the meta device has no such number
    return nn.Sequential(model, nn.AdaptiveAvgPool2d(1))


class NoInit(nn.Module):
    def __init__(self):
        pass


class Lazy(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.LazyLinear(4)


class WithoutValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(3, 4, device="meta")


class ExtraState(Small):
    def get_extra_state(self):
        return {"a": 1}


class Complex(Small):
    def forward(self, x):
        return super().forward(x) + 1j


class Sparse(Small):
    def forward(self, x):
        return super().forward(x).to_sparse()


@pytest.mark.parametrize(
    "target,words",
    [
        ("NoInit", "'own' cannot be frozen and moved to cpu: AttributeError"),
        ("Lazy", "'own' cannot be frozen and moved to cpu: ValueError"),
        ("WithoutValues", "'own' cannot be frozen and moved to cpu: NotImplementedError"),
        ("ExtraState", "the model's state holds dict 'model._extra_state', which is no tensor"),
        ("Complex", r"must return a dense real tensor .*; it returned \(1, 64\) torch.complex64"),
        ("Sparse", r"must return a dense real tensor .*; it returned \(1, 64\) torch.float32 torch.sparse_coo"),
    ],
)
def test_modules_that_no_encoder_can_be(target, words):
    card = {"name": "own", "loader": "module", "target": f"{__name__}.{target}", "feature_point": "pooled"}
    with pytest.raises(WeightsError, match=words) as caught:
        load_encoder({**card, "dimension": 64})
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("package", ["..", "no.such", "os", "no_such_package"])
def test_a_package_that_cannot_be(package):
    card = {"name": "own", "loader": "module", "target": "torch.nn.Identity", "feature_point": "pooled"}
    with pytest.raises(WeightsError, match=f"its weights come in the package {re.escape(package)}: "):
        load_encoder({**card, "dimension": 3, "files": ["w.pt"], "package": package})


def test_a_zip_archive_that_is_no_exported_program(card_file, tmp_path):
    (tmp_path / "exported").mkdir()
    torch.save(Small().state_dict(), tmp_path / "exported" / "model.pt2")
    with pytest.raises(WeightsError, match=r"model\.pt2: a zip archive, but not an exported program"):
        load_encoder(card_file("exported.yaml"))


def test_a_module_is_never_built_on_the_meta_device(tmp_path):
    """Neither where it is loaded nor where its exported bundle is."""
    card = {
        "name": "mine",
        "loader": "module",
        "target": f"{__name__}._factory_that_cannot_be_built_without_memory",
        "feature_point": "pooled",
        "dimension": 4,
        "files": ["weights.pt"],
        "folder": str(tmp_path),
        "licence": "none",
    }
    torch.save(_factory_that_cannot_be_built_without_memory().state_dict(), tmp_path / "weights.pt")
    encoder = load_encoder(card)
    root = export_encoder_bundle(card, tmp_path / "bundle")
    bundled = bundled_encoder(root / "configs" / "encoder.yaml", root / "models" / "model.pt")
    assert torch.equal(bundled(noise_image()), encoder(noise_image()))


@pytest.mark.parametrize(
    "text", ["raise RuntimeError('of its own')", "def broken(:", "import no_such_package", "1 / 0"]
)
def test_a_module_whose_import_fails(text, tmp_path, monkeypatch):
    (tmp_path / "own_module_that_fails.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    card = {"name": "mine", "loader": "module", "target": "own_module_that_fails.Net", "feature_point": "pooled"}
    with pytest.raises(UserError, match=r"target 'own_module_that_fails\.Net' cannot be imported: "):
        load_encoder({**card, "dimension": 4})


def RaisesOnItsOwn(**kwargs):
    raise RuntimeError("a reason of its own\nand more")


def test_monai_bundle(card_file, tmp_path):
    from monai.networks.nets import DenseNet121

    model = DenseNet121(spatial_dims=2, in_channels=1, out_channels=2).eval()
    root = tmp_path / "our_bundle"
    (root / "configs").mkdir(parents=True)
    (root / "models").mkdir()
    torch.save(model.state_dict(), root / "models" / "model.pt")
    config = {
        "bundle_root": ".",
        "network_def": {"_target_": "DenseNet121", "spatial_dims": 2, "in_channels": 1, "out_channels": 2},
    }
    (root / "configs" / "inference.json").write_text(json.dumps(config))
    path = card_file("our_bundle.yaml")
    encoder = load_encoder(path)
    images = noise_image()
    with torch.no_grad():
        expected = model.features(encoder.processor(images)).mean((2, 3))
    torch.testing.assert_close(encoder(images), expected)
    _passes(encoder)
    config["network_def"]["_target_"] = "NoSuchNet"
    (root / "configs" / "inference.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match="network_def cannot be built"):
        load_encoder(path)
    config["network_def"]["_target_"] = f"{__name__}.RaisesOnItsOwn"
    (root / "configs" / "inference.json").write_text(json.dumps({"network_def": config["network_def"]}))
    with pytest.raises(UserError, match=r"network_def cannot be built: .*\(a reason of its own\)"):
        load_encoder(path)
    for content, words in ((b"[]", "must hold a mapping"), (b"{", "not JSON"), (b"", "the file is empty")):
        (root / "configs" / "inference.json").write_bytes(content)
        with pytest.raises(UserError, match=rf"inference\.json: {words}"):
            load_encoder(path)
    config["network_def"] = {"_target_": "collections.OrderedDict"}
    (root / "configs" / "inference.json").write_text(json.dumps(config))
    with pytest.raises(UserError, match=r"network_def must give a torch\.nn\.Module, gave OrderedDict"):
        load_encoder(path)
    (root / "configs" / "inference.json").unlink()
    (root / "configs" / "inference.yaml").write_text("network_def: [\n")
    with pytest.raises(UserError, match=r"inference\.yaml, line 2: not valid YAML"):
        load_encoder(path)
    (root / "configs" / "inference.yaml").unlink()
    with pytest.raises(UserError, match=r"holds no inference\.json"):
        load_encoder(path)


def test_torchvision_any():
    card = load_card(
        {
            "name": "mobile",
            "loader": "torchvision",
            "architecture": "mobilenet_v3_small",
            "feature_point": "pooled",
            "dimension": 576,
            "seed": 0,
            "licence": "none",
        }
    )
    assert load_encoder(card)(noise_image()).shape == (1, 576)
    with pytest.raises(UserError, match="Did you mean 'mobilenet_v3_small'"):
        load_encoder(dataclasses.replace(card, architecture="mobilenet_v3_smal"))


def test_unknown_names_give_the_nearest():
    base = {"name": "x", "feature_point": "pooled", "dimension": 3}
    with pytest.raises(UserError, match="Did you mean 'resnet18'"):
        load_encoder({**base, "loader": "timm", "architecture": "resnet1 8", "seed": 0})
    with pytest.raises(UserError, match="no model class 'Dinov9Model'"):
        load_encoder({**base, "loader": "transformers", "architecture": "Dinov9Model", "folder": "."})


def test_prefix_tokens_must_be_timms():
    card = {"name": "x", "loader": "timm", "architecture": "vit_tiny_patch16_224", "feature_point": "mean_patch"}
    card |= {"dimension": 192, "prefix_tokens": 5, "seed": 0}
    with pytest.raises(UserError, match="prefix_tokens is 5, timm's 'vit_tiny_patch16_224' has 1"):
        load_encoder(card)
