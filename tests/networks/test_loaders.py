"""Loading: publishers' files load back bit-equal, and everything that is not them is refused in plain words."""

from __future__ import annotations

import argparse
import dataclasses
import json
import pickle

import pytest
import torch
from safetensors.torch import load_file, save_file

from candor_monai.networks.cards import list_cards, load_card
from candor_monai.networks.encoders import load_encoder
from candor_monai.networks.loaders import LOADERS, build_backbone, load_backbone
from candor_monai.networks.locations import weights_here
from candor_monai.networks.probes import probe_image
from candor_monai.utils import UserError, WeightsError
from tests.networks.images import as_tensor, noise
from tests.networks.publishers import PUBLISHABLE, publish

# Measured once on the real architectures (docs/encoders.md).
MEASURED = {
    "rad_dino": (86_580_480, 768),
    "biomedclip": (86_191_872, 512),
    "densenet121_xrv": (6_947_584, 1024),
    "phikon_v2": (303_351_808, 1024),
    "uni": (303_350_784, 1024),
    "uni2": (681_394_176, 1536),
    "virchow": (631_229_184, 1280),
    "virchow2": (631_239_424, 1280),
    "prov_gigapath": (1_134_953_984, 1536),
    "conch": (87_829_248, 512),
    "retfound": (303_301_632, 1024),
    "retfound_nature_cfp": (303_301_632, 1024),
    "flair": (24_556_608, 512),
    "monet": (303_966_208, 768),
    "dermlip": (86_192_640, 512),
    "dinov3_s": (21_596_544, 384),
    "dinov3_b": (85_660_416, 768),
    "dinov3_l": (303_129_600, 1024),
    "dinov3_h_plus": (840_592_640, 1280),
    "dinov2_l": (304_368_640, 1024),
    "clip_l14": (303_966_208, 768),
    "siglip2_l": (316_742_656, 1024),
    "random_vit_l": (303_301_632, 1024),
    "efficientnet_lite0": (3_371_008, 1280),
    "efficientnet_lite1": (4_135_680, 1280),
    "efficientnet_lite2": (4_811_072, 1280),
}
FAMILIES = {"transformers": "dinov3_s", "timm": "uni", "open_clip": "biomedclip", "torchvision": "densenet121_xrv"}


@pytest.fixture(scope="module")
def published(tmp_path_factory):
    """Small published encoders, each written once."""
    root = tmp_path_factory.mktemp("weights")
    made = {}

    def get(name):
        if name not in made:
            made[name] = publish(name, root)
        return (*made[name], root)

    return get


@pytest.fixture
def own(tmp_path):
    """A small published encoder in a folder that the test may spoil."""

    def get(name):
        card, _ = publish(name, tmp_path)
        return card, tmp_path, tmp_path / name

    return get


def _weight_file(folder, card):
    return next(folder / name for name in card.files if (folder / name).is_file())


def _read(path):
    return load_file(path) if path.suffix == ".safetensors" else torch.load(path, weights_only=False)


def _write(path, state):
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path)


def _bytes(tensor):
    return (tuple(tensor.shape), tensor.contiguous().numpy().tobytes())


def test_every_card_is_measured():
    assert set(MEASURED) == set(list_cards()) - {"blind", "marker"}


@pytest.mark.parametrize("name", sorted(MEASURED))
def test_real_architecture(name):
    """The real one, on the meta device: parameters, dimension, prefix tokens."""
    card = load_card(name)
    with torch.device("meta"):
        backbone = build_backbone(card)
        images = torch.zeros(1, card.processor.channels, card.processor.input_size, card.processor.input_size)
        parameters = sum(p.numel() for p in backbone.parameters())
        assert (parameters, card.dimension) == MEASURED[name]
        assert card.parameters == parameters
        backbone.eval()
        for point, dimension in card.points.items():
            assert backbone(images, point).shape == (1, dimension)
        if card.prefix_tokens is not None:
            assert backbone.tokens(images).shape[1] == card.prefix_tokens + card.patches


@pytest.mark.parametrize("name", PUBLISHABLE)
def test_published_files_give_the_publishers_features(name, published):
    card, feature, root = published(name)
    encoder = load_encoder(card, weights_dir=root)
    images = as_tensor(noise())
    torch.testing.assert_close(encoder(images), feature(encoder.processor(images)), atol=1e-6, rtol=1e-5)
    assert encoder.provenance["processor_differences"] == []


@pytest.mark.parametrize("name", PUBLISHABLE)
def test_published_weights_load_bit_equal(name, published):
    card, _, root = published(name)
    content = _read(_weight_file(root / name, card))
    tensors = [v for v in content.get("model", content).values() if isinstance(v, torch.Tensor)]
    there = {_bytes(tensor) for tensor in tensors}
    loaded = load_backbone(card, root).backbone.state_dict()
    assert all(_bytes(tensor) in there for tensor in loaded.values())
    assert all(not tensor.is_meta for tensor in loaded.values())


@pytest.mark.parametrize("name", [name for name in PUBLISHABLE if "mean_patch" in load_card(name).points])
def test_mean_patch_skips_class_and_registers(name, published):
    card, _, root = published(name)
    encoder = load_encoder(card, weights_dir=root, feature_point="mean_patch")
    images = probe_image()
    tokens = encoder.tokens(images)
    assert tokens.shape[1] == card.prefix_tokens + card.patches
    expected = sum(tokens[:, i] for i in range(card.prefix_tokens, tokens.shape[1])) / card.patches
    torch.testing.assert_close(encoder(images), expected, atol=1e-5, rtol=1e-4)
    assert encoder.fingerprint["feature_point"] == "mean_patch"


@pytest.mark.parametrize("name", PUBLISHABLE)
def test_every_feature_point_of_the_card_loads_and_is_checked(name, published):
    card, _, root = published(name)
    for point, dimension in card.points.items():
        encoder = load_encoder(card, weights_dir=root, feature_point=point)  # the self-check compares with the tokens
        assert encoder(probe_image()).shape == (1, dimension)


@pytest.mark.parametrize("loader", sorted(FAMILIES))
@pytest.mark.parametrize("fault", ["missing", "unexpected", "shape"])
def test_keys_must_match(loader, fault, own):
    card, root, folder = own(FAMILIES[loader])
    path = _weight_file(folder, card)
    state = _read(path)
    ignored = ("text", "logit", "classifier", "op_threshs", "mask_token", "token_embedding", "positional", "ln_final")
    key = next(k for k in state if "norm1.weight" in k and not k.startswith(ignored))
    short = key.removeprefix("visual.")
    if fault == "missing":
        del state[key]
    elif fault == "unexpected":
        state[key + "_extra"] = torch.ones(3)
    else:
        state[key] = torch.ones(state[key].shape[0] + 1)
    _write(path, state)
    with pytest.raises(WeightsError) as caught:
        load_encoder(card, weights_dir=root)
    message = str(caught.value)
    assert card.name in message
    last = ".".join(short.split(".")[-2:])
    assert last in message or "size mismatch" in message or "mismatched" in message


@pytest.mark.parametrize("loader", sorted(FAMILIES))
@pytest.mark.parametrize("damage", ["empty", "truncated", "noise", "pointer"])
def test_damaged_files(loader, damage, own):
    card, root, folder = own(FAMILIES[loader])
    path = _weight_file(folder, card)
    whole = path.read_bytes()
    content = {
        "empty": b"",
        "truncated": whole[: len(whole) // 2],
        "noise": bytes(range(256)) * 40,
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n",
    }[damage]
    path.write_bytes(content)
    with pytest.raises(WeightsError, match=path.name) as caught:
        load_encoder(card, weights_dir=root)
    words = {"empty": "empty", "truncated": "truncated", "noise": "damaged", "pointer": "Git LFS pointer"}
    assert words[damage] in str(caught.value)


BROKEN = {
    "empty": (b"", "the file is empty"),
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 9\n", "Git LFS pointer"),
    "list": (b"[]", "must hold a mapping"),
    "zeros": (b"\0" * 90, "not JSON"),
    "deep": (b'{"a":' * 100_000 + b"1" + b"}" * 100_000, "nested too deeply"),
}
CONFIGS = [
    ("dinov3_s", "config.json"),
    ("dinov3_s", "preprocessor_config.json"),
    ("biomedclip", "open_clip_config.json"),
    ("uni", "config.json"),
]


@pytest.mark.parametrize("name,config", CONFIGS)
@pytest.mark.parametrize("fault", sorted(BROKEN))
def test_broken_configs_are_named(name, config, fault, own):
    card, root, folder = own(name)
    content, words = BROKEN[fault]
    (folder / config).write_bytes(content)
    with pytest.raises(WeightsError) as caught:
        load_encoder(card, weights_dir=root)
    assert str(folder / config) in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "content,words",
    [
        ({"weight_map": {"a": "model-1.safetensors"}, "metadata": {}}, "names the part 'model-1.safetensors'"),
        ({"weight_map": {"a": "../x.safetensors"}, "metadata": {}}, "names the part '../x.safetensors'"),
        ({"weight_map": {"a": 3}, "metadata": {}}, "names the part '3'"),
        ({"weight_map": [1], "metadata": {}}, "not the list of a checkpoint's parts"),
        ({"weight_map": {"a": "b"}}, "not the list of a checkpoint's parts"),
        ({}, "not the list of a checkpoint's parts"),
        ([], "must hold a mapping"),
    ],
)
def test_a_checkpoint_in_parts_that_are_not_there(content, words, own):
    card, root, folder = own("dinov3_s")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps(content))
    with pytest.raises(WeightsError, match=r"model\.safetensors\.index\.json: ") as caught:
        load_encoder(card, weights_dir=root)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    "change,words",
    [
        ({"vision_config": None}, "vision_config must be a mapping, is None"),
        ({"model_type": ["dinov3_vit"]}, "a model of type"),
        ({"hidden_act": [1]}, "not a config of type 'dinov3_vit': Validation error for field 'hidden_act': TypeError"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers 1000000000 instead of 2"),
        ({"id2label": [1]}, "not a config of type"),
    ],
)
def test_odd_numbers_in_a_config_are_named(change, words, own):
    card, root, folder = own("dinov3_s")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(WeightsError, match=r"config\.json: ") as caught:
        load_encoder(card, weights_dir=root)
    assert words in str(caught.value)


def test_a_config_of_endless_layers_is_not_built(own):
    card, root, folder = own("dinov3_s")
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"num_hidden_layers": 10**9}))
    with pytest.raises(WeightsError, match="num_hidden_layers 1000000000 is more than any encoder has"):
        load_encoder(dataclasses.replace(card, kwargs={}), weights_dir=root)


@pytest.mark.parametrize("error", [RuntimeError("first line\nsecond"), AttributeError(), OSError("no")])
def test_whatever_a_library_raises_is_one_line(error, own, monkeypatch):
    card, root, folder = own("uni")

    def fails(card, folder):
        raise error

    monkeypatch.setitem(LOADERS, "timm", fails)
    with pytest.raises(WeightsError) as caught:
        load_encoder(card, weights_dir=root)
    message = str(caught.value)
    for part in ("'uni'", str(folder), type(error).__name__, str(error).partition("\n")[0]):
        assert part in message
    assert "second" not in message


@pytest.mark.parametrize("error", [UserError("as it is"), MemoryError(), KeyboardInterrupt()])
def test_what_is_not_the_folders_fault_passes(error, own, monkeypatch):
    card, root, _ = own("uni")

    def fails(card, folder):
        raise error

    monkeypatch.setitem(LOADERS, "timm", fails)
    with pytest.raises(type(error)) as caught:
        load_encoder(card, weights_dir=root)
    assert caught.value is error


def test_a_folder_or_a_dangling_link_in_place_of_the_weights(own):
    card, root, folder = own("uni")
    path = _weight_file(folder, card)
    path.unlink()
    path.mkdir()
    with pytest.raises(WeightsError, match=rf"{path.name} is a folder"):
        load_encoder(card, weights_dir=root)
    path.rmdir()
    path.symlink_to(folder / "blobs" / "gone")
    with pytest.raises(WeightsError, match=rf"{path.name} is a link to .*gone, where no file is"):
        load_encoder(card, weights_dir=root)
    path.unlink()
    path.symlink_to(path)
    with pytest.raises(WeightsError, match=rf"{path.name} is a link"):
        load_encoder(card, weights_dir=root)


def test_pickled_module_is_not_run(tmp_path):
    """What would run code when opened is refused, and nothing runs."""
    card = load_card("densenet121_xrv")
    folder = tmp_path / card.name
    folder.mkdir()
    witness = tmp_path / "ran"

    class Bomb:
        def __reduce__(self):
            return (open, (str(witness), "w"))

    torch.save({"model": Bomb()}, folder / card.files[1])
    with pytest.raises(WeightsError, match="convert"):
        load_encoder(card, weights_dir=tmp_path)
    (folder / card.files[1]).write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(WeightsError):
        load_encoder(card, weights_dir=tmp_path)
    assert not witness.exists()


def test_retfound_arguments_other_than_a_namespace_are_refused(own):
    card, root, folder = own("retfound_nature_cfp")
    path = folder / card.files[0]
    content = torch.load(path, weights_only=False)
    content["args"] = argparse.Action([], "lr")
    torch.save(content, path)
    with pytest.raises(WeightsError, match="Python objects"):
        load_encoder(card, weights_dir=root)


@pytest.mark.parametrize("other", ["dinov3_b", "rad_dino", "clip_l14"])
def test_another_architecture_in_the_folder(other, own, tmp_path):
    _, root, folder = own("dinov3_s")
    real = dataclasses.replace(load_card("dinov3_s"), golden=None)
    publish(other, tmp_path / "other")
    for name in ("config.json", "model.safetensors"):
        (folder / name).write_bytes((tmp_path / "other" / other / name).read_bytes())
    with pytest.raises(WeightsError, match=r"config\.json: (a model of type|another architecture)"):
        load_encoder(real, weights_dir=root)


def test_another_model_of_the_same_class_names_the_numbers(own):
    card, root, _ = own("dinov3_s")
    wider = dataclasses.replace(card, kwargs={**card.kwargs, "hidden_size": 64}, points={"cls": 64}, dimension=64)
    with pytest.raises(WeightsError, match="hidden_size 32 instead of 64"):
        load_encoder(wider, weights_dir=root)


def test_sha256_of_the_card_is_kept(own):
    card, root, _ = own("uni")
    wrong = dataclasses.replace(card, sha256="0" * 64)
    with pytest.raises(WeightsError, match="another revision, or an altered file"):
        load_encoder(wrong, weights_dir=root)


def test_folder_without_the_file_says_what_is_there(tmp_path):
    folder = tmp_path / "uni"
    folder.mkdir()
    (folder / "weights.ckpt").write_bytes(b"x")
    with pytest.raises(WeightsError) as caught:
        load_encoder("uni", weights_dir=tmp_path)
    assert "pytorch_model.bin" in str(caught.value)
    assert "weights.ckpt" in str(caught.value)
    assert "CC-BY-NC-ND-4.0" in str(caught.value)


def test_missing_weights_dir():
    with pytest.raises(WeightsError, match="no such folder"):
        load_encoder("uni", weights_dir="/nowhere/at/all")


def test_remote_code_is_never_run(own):
    card, root, folder = own("dinov3_s")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"] = {"AutoModel": "modeling_own.Model"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="auto_map"):
        load_encoder(card, weights_dir=root)


@pytest.mark.parametrize("whole", ["ViTForImageClassification", "ViTMAEForPreTraining"])
def test_retfound_from_other_vit_checkpoints(whole, tmp_path):
    """The re-host's model type is not known: a classifier's or a masked autoencoder's file gives the same encoder."""
    import transformers

    card, _ = publish("retfound", tmp_path)
    kind = getattr(transformers, whole)
    decoder = {"decoder_hidden_size": 16, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 2}
    more = {**decoder, "decoder_intermediate_size": 16} if "MAE" in whole else {}
    model = kind(kind.config_class(**card.kwargs, **more)).eval()
    model.save_pretrained(tmp_path / "retfound")
    encoder = load_encoder(card, weights_dir=tmp_path)
    own_state = {k.removeprefix("vit."): v for k, v in model.state_dict().items() if k.startswith("vit.")}
    loaded = encoder.backbone.model.state_dict()
    assert set(loaded) == set(own_state)
    assert all(torch.equal(loaded[key], own_state[key]) for key in loaded)
    assert encoder.tokens(probe_image()).shape[1] == 197


def test_activation_follows_the_folder(own):
    card, root, folder = own("dermlip")
    assert load_backbone(card, root).provenance["activation"] == "QuickGELU"
    path = folder / "open_clip_config.json"
    config = json.loads(path.read_text())
    config["model_cfg"]["quick_gelu"] = False
    path.write_text(json.dumps(config))
    assert load_backbone(card, root).provenance["activation"] == "GELU"
    path.unlink()
    with pytest.raises(WeightsError, match=r"open_clip_config\.json"):
        load_encoder(card, weights_dir=root)


def test_processor_of_the_folder_is_compared(own):
    card, root, folder = own("monet")
    path = folder / "preprocessor_config.json"
    config = json.loads(path.read_text())
    config["image_mean"] = [0.48145466, 0.4578275, 0.40821073]  # CLIP's, as in the repository's first commit
    path.write_text(json.dumps(config))
    with pytest.raises(WeightsError, match="mean: card"):
        load_encoder(card, weights_dir=root)
    follow = dataclasses.replace(card, processor=dataclasses.replace(card.processor, policy="folder"))
    encoder = load_encoder(follow, weights_dir=root)
    assert encoder.processor.card.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
    assert len(encoder.provenance["processor_differences"]) == 1
    keep = dataclasses.replace(card, processor=dataclasses.replace(card.processor, policy="card"))
    encoder = load_encoder(keep, weights_dir=root)
    assert encoder.processor.card.mean == card.processor.mean
    assert encoder.provenance["processor_differences"][0].startswith("mean: card")


def test_processor_by_name(own):
    card, root, _ = own("conch")
    native = load_encoder(card, weights_dir=root)
    small = load_encoder(card, weights_dir=root, processor="at_224")
    images = probe_image()
    assert native.processor(images).shape[-1] == 448
    assert small.processor(images).shape[-1] == 224
    assert native.fingerprint != small.fingerprint
    assert small.tokens(images).shape[1] == 197
    with pytest.raises(UserError, match="at_224"):
        load_encoder(card, weights_dir=root, processor="at_225")


@pytest.mark.parametrize("name", ["phikon_v2", "siglip2_l"])
def test_processor_of_the_folder_is_followed(name, own):
    """Cards whose processor is not certain take the folder's."""
    card, root, folder = own(name)
    path = folder / "preprocessor_config.json"
    config = json.loads(path.read_text())
    config["resample"] = 2 if config["resample"] == 3 else 3
    path.write_text(json.dumps(config))
    encoder = load_encoder(card, weights_dir=root)
    assert encoder.processor.card.interpolation != card.processor.interpolation
    assert encoder.provenance["processor_differences"]


def test_weights_here(own):
    card, root, _ = own("uni")
    assert weights_here(card, root) == "folder uni of weights_dir"
    assert weights_here(load_card("virchow"), root) == "missing"
    assert weights_here(load_card("random_vit_l")) == "none needed"


def test_seeded_weights_leave_the_random_state_alone():
    small = dataclasses.replace(
        load_card("random_vit_l"),
        kwargs={"num_classes": 0, "embed_dim": 32, "depth": 1, "num_heads": 2},
        points={"cls": 32},
        dimension=32,
    )
    state = torch.random.get_rng_state()
    first, second = load_encoder(small), load_encoder(small)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert first.fingerprint == second.fingerprint
    other = load_encoder(dataclasses.replace(small, seed=43))
    assert other.fingerprint["weights"] != first.fingerprint["weights"]
