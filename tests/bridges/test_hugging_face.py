"""Folders for Hugging Face. Oracles: transformers and timm on the folder; the model itself."""

import json
import shutil

import numpy as np
import pytest
import timm
import torch
from PIL import Image, ImageOps
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers
from turned_photos import NAMES, predictor, write_turned_photos
from typed import must_run, refused

from labelwise.calibration import CALIBRATORS, Platt, Temperature
from labelwise.errors import SettingsError
from labelwise.exports.hub import export_hub
from labelwise.exports.onnx_file import export_onnx, folded
from labelwise.learn.objectives import QuasibinaryLink, SoftmaxOrNoneLink, SPALink, WeightedSigmoid
from labelwise.learn.predictor import Predictor
from labelwise.links import Consistent, Sigmoid, Softmax
from labelwise.photos.words import TwoTowers, Word, WordList
from labelwise.photos.words.tower_files import _preprocessing
from labelwise.photos.words.word_list import TEMPLATES
from labelwise.pictures import PictureImages
from labelwise.pictures.labelwise_runtime import Tagger
from labelwise.pictures.memory import as_images

SLOPES, OFFSETS = [0.5, 1.0, 2.0, 0.25], [-1.0, 0.5, 0.0, 2.0]
FOLDABLE = {
    "sigmoid": Sigmoid(),
    "temperature": Temperature(Sigmoid(), 2.5, 1e4),
    "temperature of raw logits": Temperature(None, 0.4, 1e4),
    "platt": Platt(Sigmoid(), SLOPES, OFFSETS, 1e4),
    "offsets": Platt(None, 0.7, OFFSETS, 1e4),
    "platt of weights": Platt(WeightedSigmoid([0.5, 1.0, 2.0, 9.0]), SLOPES, OFFSETS, 1e4),
    "weights": WeightedSigmoid([0.5, 1.0, 2.0, 9.0]),
    "softmax": Softmax(),
    "warm softmax": Softmax(1.7),
}
EXACT = 1e-5
FUNCTIONS = {  # what transformers documents for each problem_type
    "multi_label_classification": torch.sigmoid,
    "single_label_classification": lambda logits: logits.softmax(1),
}


LOGITS, NOISE = np.random.default_rng(0).normal(0, 2, (2, 80, len(NAMES)))
OTHERS = {
    "spa": SPALink(),
    "isotonic": CALIBRATORS["isotonic"](LOGITS, (LOGITS + NOISE > 0) * 1.0, Sigmoid()),
    "beta": CALIBRATORS["beta"](LOGITS, (LOGITS + NOISE > 0) * 1.0, Sigmoid()),
    "temperature of spa": Temperature(SPALink(), 2.0, 1e4),
    "cut off early": Platt(Sigmoid(), 1.0, 0.0, 3.0),
    "softmax or none": SoftmaxOrNoneLink(),
    "quasibinary": QuasibinaryLink(0.8),
    "parents": Consistent(Sigmoid(), (1, -1, -1, 0)),
    "ranking only": None,
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    return write_turned_photos(tmp_path_factory.mktemp("photos"), 80)


def inputs(transform, paths):
    pictures = []
    for path in paths:
        with Image.open(path) as image:
            pictures.append(transform(ImageOps.exif_transpose(image).convert("RGB")))
    return torch.stack(pictures)


def by_timm(folder, paths):
    network = timm.create_model(f"local-dir:{folder}", pretrained=True).eval()
    config = timm.data.resolve_model_data_config(network)
    transform = timm.data.create_transform(**config, is_training=False)
    with torch.no_grad():
        return network(inputs(transform, paths))


def same_everywhere(model, folder, photos):
    """Export a model; labelwise and timm read the folder with its probabilities."""
    done = export_hub(model, folder, lambda *_: None)
    assert done.loads_in_timm
    assert (done.loads_in_transformers, done.why_not_transformers) == (True, "")
    expected = model.predict(photos).probs
    read = Predictor.load(folder)
    np.testing.assert_allclose(read.predict(photos).probs, expected, atol=EXACT)
    function = FUNCTIONS[json.loads((folder / "config.json").read_text())["problem_type"]]
    np.testing.assert_allclose(function(by_timm(folder, photos)), expected, atol=EXACT)
    return read, expected


def test_one_probability_in_timm_onnx_and_labelwise(photos, tmp_path):
    read, expected = same_everywhere(predictor(FOLDABLE["platt"]), tmp_path / "hub", photos)
    assert expected.std(axis=0).min() > 0.005  # the photos tell the labels apart
    assert np.abs(expected.sum(axis=1) - 1).min() > 1e-3  # a softmax would be seen
    images, rows = as_images(photos), list(range(8))
    export_onnx(read, read.spec("0" * 63 + "1"), tmp_path / "model.onnx", images, rows)
    tagger = Tagger(tmp_path / "model.onnx")
    answers = [tagger(path.read_bytes()).probability for path in photos]
    found = np.array([[answer[name] for name in NAMES] for answer in answers])
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("name", FOLDABLE)
def test_links_that_scale_and_shift_are_folded_into_the_classifier(name, photos, tmp_path):
    read, _ = same_everywhere(predictor(FOLDABLE[name]), tmp_path / "hub", photos[:8])
    assert type(read.link) is (Softmax if "softmax" in name else Sigmoid)


@pytest.mark.parametrize("name", FOLDABLE)
def test_transformers_takes_the_function_of_the_folder(name, photos, transformers, tmp_path):
    export_hub(predictor(FOLDABLE[name]), tmp_path / "hub", lambda *_: None)
    tagger = transformers.pipeline("image-classification", str(tmp_path / "hub"), device="cpu")
    answers = [tagger(str(path), top_k=len(NAMES)) for path in photos[:8]]
    by_name = [{one["label"]: one["score"] for one in answer} for answer in answers]
    found = np.array([[answer[name] for name in NAMES] for answer in by_name])
    expected = predictor(FOLDABLE[name]).predict(photos[:8]).probs
    np.testing.assert_allclose(found, expected, atol=EXACT)


@pytest.mark.parametrize("name", OTHERS)
def test_other_links_are_kept_by_labelwise(name, photos, tmp_path):
    model = predictor(OTHERS[name])
    done = export_hub(model, tmp_path / "hub", lambda *_: None)
    assert (done.loads_in_timm, done.loads_in_transformers) == (True, False)
    assert done.why_not_transformers
    read = Predictor.load(tmp_path / "hub")
    assert read.spec("0" * 64).link == model.spec("0" * 64).link
    pixels = inputs(model.transform.pixels, photos[:4])
    logits = read.logits(model.transform.normalise(pixels))
    assert torch.equal(logits, model.logits(pixels))
    timms = by_timm(tmp_path / "hub", photos[:4])
    torch.testing.assert_close(timms, logits, atol=EXACT, rtol=EXACT)


@pytest.mark.parametrize("name", OTHERS)
def test_transformers_refuses_other_links(name, transformers, tmp_path):
    export_hub(predictor(OTHERS[name]), tmp_path / "hub", lambda *_: None)
    with pytest.raises(ValueError, match="model type `labelwise`"):
        transformers.pipeline("image-classification", str(tmp_path / "hub"))


def test_folding_leaves_the_model_it_was_given_alone():
    model = predictor(FOLDABLE["platt"])
    before = {name: tensor.clone() for name, tensor in model.model.state_dict().items()}
    assert folded(model)[0].model.head is not model.model.head
    for name, tensor in model.model.state_dict().items():
        assert torch.equal(tensor, before[name]), name


# Text-image models of folders. Oracle: transformers, on small random models: their logits, their
# tokens and their preprocessing.

LONG = "a dog and a cat, and " * 9  # longer than the places of a text
TEXTS = ("a photo of a dog", "Dog", "two dogs, running on a beach!", "  a   puppy's  bed ", LONG)
PLAIN = ("a photo of a dog", "dog", "two dogs running on a beach", "a puppys bed")
PLAIN += (LONG.replace(",", "").strip(),)
CORPUS = ["a photo of a dog", "two dogs running on a beach", "a puppy's bed", "a dog, a cat!"]
WIDTH, PLACES, VOCABULARY = 32, 12, 300


def shaken(model):
    """Give every weight a value of its own, also those that start at zero or one."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape, generator=generator)
    return model.eval()


def save_clip_tokenizer(transformers, folder):
    """Write the tokenizer of CLIP with a few merges, as transformers saves it."""
    trained = Tokenizer(models.BPE(end_of_word_suffix="</w>", unk_token="<|endoftext|>"))
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        end_of_word_suffix="</w>",
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=["<|startoftext|>", "<|endoftext|>"],
        show_progress=False,
    )
    trained.train_from_iterator(CORPUS, trainer)
    parts = json.loads(trained.to_str())["model"]
    merges = [tuple(pair) for pair in parts["merges"]]
    tokenizer = transformers.CLIPTokenizer(vocab=parts["vocab"], merges=merges)
    tokenizer.save_pretrained(folder)
    return tokenizer


def save_siglip_tokenizer(transformers, folder, kind):
    """Write a tokenizer of SigLIP's sort, pieces and an end token, or that of SigLIP 2."""
    trained = Tokenizer(models.BPE(unk_token="<unk>"))
    trained.normalizer = normalizers.Replace(" ", "▁")
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"]
    trainer = trainers.BpeTrainer(vocab_size=120, special_tokens=special, show_progress=False)
    trained.train_from_iterator(CORPUS, trainer)
    if kind == "siglip2":
        parts = json.loads(trained.to_str())["model"]
        merges = [tuple(pair) for pair in parts["merges"]]
        made = transformers.Siglip2Tokenizer(vocab=parts["vocab"], merges=merges)
    else:
        trained.post_processor = processors.TemplateProcessing(
            "$A <eos>", special_tokens=[("<eos>", 1)]
        )
        made = transformers.PreTrainedTokenizerFast(
            tokenizer_object=trained, pad_token="<eos>", padding_side="right"
        )
    made.save_pretrained(folder)
    return made


def save_towers(transformers, folder, kind, tokens=None, activation="quick_gelu"):
    """Write a small model with tokenizer and preprocessing; return it and its tokenizer."""
    name = {"clip": "CLIP", "siglip": "Siglip", "siglip2": "Siglip2"}[kind]
    if kind == "clip":
        tokenizer = save_clip_tokenizer(transformers, folder)
    else:
        tokenizer = save_siglip_tokenizer(transformers, folder, tokens or kind)
    shared = {"hidden_size": WIDTH, "intermediate_size": 48}
    shared |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    text = {**shared, "vocab_size": len(tokenizer), "max_position_embeddings": PLACES}
    text |= {"hidden_size": 40, "num_attention_heads": 5}  # other than those of photos
    vision = {**shared, "patch_size": 8}
    vision |= {"num_patches": 16} if kind == "siglip2" else {"image_size": 32}
    if kind == "clip":
        text |= {"hidden_act": activation, "eos_token_id": tokenizer.eos_token_id}
        more = {"vision_config": {**vision, "hidden_act": activation}, "projection_dim": 24}
    else:
        text, more = {**text, "projection_size": WIDTH}, {"vision_config": vision}
    config = getattr(transformers, f"{name}Config")(text_config=text, **more)
    model = shaken(getattr(transformers, f"{name}Model")(config))
    model.save_pretrained(folder)
    save_processor(folder, CROP if kind == "clip" else SQUASH)
    return model, tokenizer


def save_processor(folder, settings):
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


SIDES = {"height": 32, "width": 32}
SQUASH = {"size": SIDES, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
CROP = {"size": {"shortest_edge": 32}, "crop_size": SIDES, "resample": 3}
CROP |= {"do_resize": True, "do_center_crop": True}
CROP |= {"image_mean": [0.48145466, 0.4578275, 0.40821073]}
CROP |= {"image_std": [0.26862954, 0.26130258, 0.27577711]}


def scores(towers, images, texts=TEXTS):
    """Return the logits (images, texts) of both halves."""
    with torch.inference_mode():
        photos = towers.image(images).mean(dim=(2, 3))
    vectors = towers.text.encode(texts, towers.tokens)
    return towers.scale * photos @ vectors.T + (towers.bias or 0.0)


def images(count=3):
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("activation", ["quick_gelu", "gelu"])
def test_clip_gives_the_logits_and_tokens_of_transformers(transformers, tmp_path, activation):
    model, tokenizer = save_towers(transformers, tmp_path, "clip", activation=activation)
    towers = TwoTowers(tmp_path)
    fed = tokenizer(list(TEXTS), padding=True, truncation=True, max_length=PLACES)
    for text_, ids, mask in zip(TEXTS, fed["input_ids"], fed["attention_mask"], strict=True):
        assert towers.tokens.of(text_) == [one for one, kept in zip(ids, mask, strict=True) if kept]
    with torch.inference_mode():
        expected = model(
            input_ids=torch.tensor(fed["input_ids"]),
            attention_mask=torch.tensor(fed["attention_mask"]),
            pixel_values=images(),
        ).logits_per_image
    torch.testing.assert_close(scores(towers, images()), expected, rtol=1e-5, atol=1e-5)
    assert towers.bias is None


@pytest.mark.parametrize(
    ("kind", "tokens"),
    [("siglip", "siglip"), ("siglip2", "siglip2"), ("siglip", "siglip2")],
    ids=["siglip", "siglip2", "siglip2-of-one-size"],  # the last are a SiglipModel on the hub
)
def test_siglip_gives_the_logits_of_transformers(transformers, tmp_path, kind, tokens):
    model, tokenizer = save_towers(transformers, tmp_path, kind, tokens)
    towers = TwoTowers(tmp_path)
    # The first SigLIP's texts lose their punctuation before they become tokens.
    told = TEXTS if tokens == "siglip2" else PLAIN
    full = {"padding": "max_length", "truncation": True, "max_length": PLACES}
    padded = torch.tensor(tokenizer(list(told), **full)["input_ids"])
    assert padded.tolist() == [towers.tokens.of(text_) for text_ in TEXTS]
    fed = {"pixel_values": images()}
    if kind == "siglip2":
        patches = images().unfold(2, 8, 8).unfold(3, 8, 8).permute(0, 2, 3, 4, 5, 1)
        fed = {
            "pixel_values": patches.reshape(3, 16, -1),
            "pixel_attention_mask": torch.ones(3, 16, dtype=torch.long),
            "spatial_shapes": torch.tensor([[4, 4]] * 3),
        }
    with torch.inference_mode():
        expected = model(input_ids=padded, **fed).logits_per_image
    torch.testing.assert_close(scores(towers, images()), expected, rtol=1e-5, atol=1e-5)
    assert towers.bias == pytest.approx(float(model.logit_bias.detach()))


@pytest.mark.parametrize(("settings", "processor"), [(CROP, "CLIP"), (SQUASH, "Siglip")])
def test_photos_become_the_input_that_transformers_makes(
    transformers, tmp_path, settings, processor
):
    save_processor(tmp_path, settings)
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 9, 3), np.uint8))
    photo = coarse.resize((90, 60), Image.Resampling.BICUBIC)
    made = getattr(transformers, f"{processor}ImageProcessorPil")(**settings)
    expected = torch.as_tensor(made(photo, return_tensors="pt")["pixel_values"][0])
    transform = _preprocessing(tmp_path, 32)
    pixels = torch.from_numpy(np.array(transform.resize(photo))).permute(2, 0, 1)[None]
    # Rounding to 8 bits may differ by one step.
    assert (transform.inputs(pixels)[0] - expected).abs().max() < 1.1 / 255 / 0.26


def test_a_folder_that_lacks_a_file_is_refused_with_what_to_do(transformers, tmp_path):
    save_towers(transformers, tmp_path, "clip")

    def refuses(words):
        with pytest.raises(SettingsError, match=words):
            TwoTowers(tmp_path)

    for name in ("preprocessor_config.json", "tokenizer.json"):
        kept = (tmp_path / name).rename(tmp_path / "kept")
        refuses(rf"must hold {name}.* copy it from")
        kept.rename(tmp_path / name)
    weights = tmp_path / "model.safetensors"
    state = load_file(weights)
    save_file({**state, "vision_model.extra.weight": torch.zeros(1)}, weights)
    refuses(r"not read here.* 'vision_model.extra.weight'")
    del state["text_projection.weight"]
    save_file(state, weights)
    refuses(r"built in a way .* 'text_projection.weight'")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "blip"}))
    refuses("model_type of clip, siglip, siglip2, got 'blip'")


@pytest.mark.parametrize("kind", ["clip", "siglip"])
def test_a_run_of_towers_scores_as_the_model_does_and_is_searched_by_any_text(
    transformers, tmp_path, kind
):
    folder, photos = tmp_path / "model", tmp_path / "photos"
    photos.mkdir()
    random = np.random.default_rng(1)
    for number in range(6):
        picture = Image.fromarray(random.integers(0, 256, (40, 48, 3), np.uint8))
        picture.save(photos / f"{number}.png")
    save_towers(transformers, folder, kind)
    words = tmp_path / "words.txt"
    words.write_text("dog: a dog, a puppy\nbeach\n")
    run, index = tmp_path / "run", tmp_path / "index"
    said = must_run("train", photos, "--words", words, "--model", folder, "-o", run).output
    said = " ".join(said.split())
    assert "6 photos and 2 words" in said
    assert "not calibrated: no answers yet" in said

    model = TwoTowers(folder)
    pictures = PictureImages(sorted(photos.iterdir()))
    pixels = [model.network.transform.resize(pictures.read(row)) for row in range(6)]
    stacked = torch.stack([torch.from_numpy(np.array(one)).permute(2, 0, 1) for one in pixels])
    with torch.inference_mode():
        features = model.network(model.network.transform.inputs(stacked)).mean(dim=(2, 3))
    beach = TEMPLATES[0] if kind == "clip" else "this is a photo of {}."
    described = [["a dog", "a puppy"], [beach.format("beach")] + ["beach"] * (kind == "clip")]
    vectors = [model.text.encode(own, model.tokens).mean(0) for own in described]
    cosines = features @ torch.stack([one / one.norm() for one in vectors]).T
    expected = model.scale * cosines + (model.bias or 0)
    predictor = Predictor.load(run)
    with torch.inference_mode():
        found = predictor.model(predictor.transform.inputs(stacked)).logits
    torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    if kind == "siglip":
        torch.testing.assert_close(predictor.link(found), found.sigmoid())

    must_run("index", photos, "--model", run, "-o", index)
    assert "0.png" in must_run("search", index, "--text", "a dog on a beach").output
    shutil.move(folder, tmp_path / "elsewhere")
    assert "name its folder with --encoder" in refused("search", index, "--text", "a dog")
    must_run("search", index, "--text", "a dog", "--encoder", tmp_path / "elsewhere")


def test_a_word_in_other_letters_is_doubted_by_clip_and_words_alike_are_named(
    transformers, tmp_path
):
    save_towers(transformers, tmp_path, "clip")
    words = WordList((Word("hund", ("a dog",)), Word("dog", ("a dog",)), Word("犬", ("犬",))))
    doubts = TwoTowers(tmp_path).doubts(words)
    assert any("CLIP was trained on English, and '犬'" in one for one in doubts)
    assert any("'hund' and 'dog' get nearly the same" in one for one in doubts)
