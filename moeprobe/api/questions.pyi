# Written by docs/generate.py from the declarations of all questions.

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Unpack

from moeprobe.adapters.base import Models
from moeprobe.declarations.options import Keywords, Options
from moeprobe.probes.correspond.measure import CorrespondResult
from moeprobe.probes.discontinuity.measure import DiscontinuityResult
from moeprobe.probes.overlay.measure import OverlayResult
from moeprobe.probes.trace.measure import Recorded
from moeprobe.results.folder import Result
from moeprobe.probes.routes.measure import RoutesResult
from moeprobe.studies.server.result import ServerResult
from moeprobe.runtime.progress import Progress

__all__ = [
    "agree",
    "align",
    "align_traces",
    "analyze_trace",
    "attack",
    "check_server",
    "confidence",
    "contagion",
    "correspond",
    "corruptions",
    "coverage",
    "determinism",
    "discontinuity",
    "drift",
    "evaluate",
    "experts",
    "fewshot",
    "flips",
    "frames",
    "indexer",
    "margins",
    "match_ratio",
    "mismatch",
    "noise_sweep",
    "overlay",
    "precision",
    "prefetch",
    "record",
    "regret",
    "routes",
    "s_matrix",
    "sweep",
    "trace_balance",
    "trace_batches",
    "trace_coverage",
    "trace_locality",
    "trace_prefetch",
]

def agree(
    models: Models,
    *,
    data: str | None = None,
    gates: str = 'recomputed',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Do two forms of one model route alike? Original and quantized, float32 and bfloat16, before and after conversion.

    All forms read the same inputs. Each is compared with the first, and the first with itself in batches of another
    size. Reports which tokens change experts and in which layer first, the price in log-probability, and how much of
    that goes with the choices of experts: each form repeats the other's.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        gates: Weights of repeated experts: recomputed by the form that repeats them, or replayed from the other.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def align(
    models: Models,
    *,
    data: str | None = None,
    permutations: int = 200,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Do two trainings learn the same experts? Experts are aligned by the tokens that they have in common.

    The one-to-one alignment is fitted to one half of the images and judged on the other, both ways, since the best of
    many alignments agrees by chance. Three or more trainings that differ in their seed also give the share of routing
    that data determine.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        permutations: Random orders of the images that show how well unrelated routing can be aligned.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def align_traces(
    traces: str | Path | Sequence[str | Path],
    *,
    permutations: int = 200,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """Which experts of two recordings correspond? As moeprobe align, without the models.

    The alignment is fitted to one half of the inputs and judged on the other, both ways. Unrelated inputs show how
    well the best of many alignments agrees by chance.

    Args:
        traces: Files of moeprobe trace record or trace import, of the same inputs.
        permutations: Random orders of the inputs that show how well unrelated routing aligns.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared.
    """

def analyze_trace(
    traces: str | Path | Sequence[str | Path],
    *,
    expert_map: str | Path | None = None,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
    unit: str | None = None,
) -> Result:
    """Confidence, load and match of recorded routing, without the model.

    Each trace but the first is compared with the first, input by input and token by token.

    Args:
        traces: Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.
        expert_map: JSON map from the first trace's experts to the other traces' experts (null = removed), for a pruned
            or merged model.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared.
    """

def attack(
    models: Models,
    *,
    data: str | None = None,
    epsilons: Sequence[float] | None = None,
    norm: str = 'linf',
    steps: int = 10,
    restarts: int = 0,
    direction: str = 'gradient',
    on: str = 'answer',
    expert: int | None = None,
    transfer: bool = False,
    attribute: bool = False,
    gates: str = 'recomputed',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Does a small, harmful change of the pixels also change the experts?

    Projected gradient ascent, with the change of the image no larger than epsilon; the routing is compared with the
    clean image's. Random changes of the same norm stand beside it. ```on``` names the goal: the loss of the answer,
    the tokens that leave their sets of experts, or those that go to one expert.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        epsilons: Largest norms of a change, in 255ths; default: 0,1,2,4,8, or 0,16,32,64,128 with l2.
        norm: linf: the largest change of a value; l2: the root of the summed squares of all changes of an image.
        steps: Steps of the ascent, each of size 2.5 epsilon / steps.
        restarts: Ascents from random points, beside that from the image itself; the worst of each image counts.
        direction: gradient: up the objective, with random changes beside it; random: these alone.
        on: What is attacked: the answer, the sets of experts, these while the answer stays, both together, or the load:
            all tokens to one expert, or to the busiest.
        expert: With ``on`` one-expert: the expert, from 0.
        transfer: Also judge each checkpoint on the images that were crafted on every other one; all are in memory at
            once.
        attribute: Replay clean routing on perturbed pixels and vice versa: how much of the change is due to switching?
        gates: With ``attribute``: weights of the replayed experts, recomputed (for the pixels) or replayed as well.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def check_server(
    address: str,
    *,
    model: str,
    texts: str | Path | None = None,
    requests: int = 400,
    batches: Sequence[int] = (1, 8, 32),
    max_tokens: int = 32,
    timeout: float = 120.0,
    options: Options | None = None,
    watcher: Progress | None = None,
    batch_size: int = 8,
    device: str = 'auto',
    dtype: str = 'auto',
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> ServerResult:
    """Does a running server route as the model that it serves, and as itself?

    Sends each request alone, again, and many at a time, and keeps every answer. Then it imports the routing, checks it
    for faults of capture, compares it with the model and with the server's other runs, and splits the difference of
    log-probabilities into routing and the rest. After Ctrl-C the same command continues. With ``dtype`` of the server's
    precision, the model in float32 stands beside the server: what precision alone changes.

    Args:
        address: Address of vLLM or SGLang, e.g. http://127.0.0.1:8000.
        model: Folder of the served model, with its tokenizer and config.json.
        texts: Prompts: a .txt with one per line, or a .jsonl; default: random tokens.
        requests: Requests in each run.
        batches: Concurrent requests: a run for each; with 1 always two runs.
        max_tokens: Tokens to generate for each request.
        timeout: Seconds from sending a request to the end of its answer; each is tried three times.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit, or the server refuses, does not answer or returns no
            routing.
    """

def confidence(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How confident are the routers on clean images?

    Mean highest gate, second gate, sum of the rest, the margin between the first two, and the entropy of the gates; how
    near a token's set of experts is to another set, and what share of its gates the set has; and how evenly tokens
    choose experts.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def contagion(
    models: Models,
    *,
    data: str | None = None,
    share: float = 0.25,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How far does one token's routing depend on the others?

    Share of tokens that are processed by other experts when (batch) the other images of their group, (token) other
    tokens at the router only, or (attention) the pixels of other patches are exchanged. The first two are 0 where each
    token is routed on its own and capacity suffices.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        share: Share of an image's patches that are exchanged, between 0 and 1.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def correspond(
    model: str | Path | None = None,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: str | Path | Sequence[str | Path] = (),
    count: int = 4,
    view: str = 'random_crop',
    severity: float | None = None,
    lines: int = 16,
    image_size: int | None = None,
    patch_size: int | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    split: str = 'test',
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    svg: bool = False,
    command: str = '',
) -> CorrespondResult:
    """Draw lines between the patches of two views that show the same part of the image.

    Probes draw the same views with the same seed. Without a checkpoint the grid follows V-MoE-S/32,
    7 x 7 patches of 32 pixels.

    Args:
        model: A run folder or .safetensors file whose image and patch size are used; its experts color the lines.
        data: Data set: NAME or NAME:LOCATION, e.g. folder:photos; default: the one that the checkpoint was trained on.
        images: Names of images of the data set.
        files: An image file of your own.
        count: How many images, if none is named.
        view: A view that makes pairs, or one with a severity.
        severity: Compare the clean image with the view at this severity.
        lines: Largest number of lines per image, spread evenly; the table holds all pairs.
        image_size: Side of the model's input in pixels, without a checkpoint; 224 if not given.
        patch_size: Side of a patch in pixels, without a checkpoint; 32 if not given.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def corruptions(
    models: Models,
    *,
    data: str | None = None,
    corruptions: Sequence[str] = ('gaussian_noise', 'shot_noise', 'impulse_noise', 'defocus_blur', 'glass_blur', 'motion_blur', 'zoom_blur', 'snow', 'frost', 'fog', 'brightness', 'contrast', 'elastic_transform', 'pixelate', 'jpeg_compression', 'speckle_noise', 'gaussian_blur', 'spatter', 'saturate'),
    severities: Sequence[float] = (1.0, 2.0, 3.0, 4.0, 5.0),
    baseline: str | None = None,
    controls: bool = True,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How far do routing and accuracy withstand the corruptions of ImageNet-C?

    All 19 at severities 1 to 5: accuracy and κ of routing for each, for each family and on average, with intervals
    paired over images. Means are over the 15 standard ones, as ImageNet-C's are: *mean* is for these corruptions, *mean
    of any* for others like them, with an interval over images and corruptions. Those that move content between
    patches have a control, which resamples alike and moves nothing by a pixel.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        corruptions: Corruptions: gaussian_noise, shot_noise, impulse_noise, defocus_blur, glass_blur, motion_blur,
            zoom_blur, snow, frost, fog, brightness, contrast, elastic_transform, pixelate, jpeg_compression,
            speckle_noise, gaussian_blur, spatter, saturate; default all.
        severities: Severities, whole numbers from 1 to 5.
        baseline: One of the checkpoints, by name: errors of the others are divided by its errors (corruption error).
        controls: Run the geometric controls of glass_blur, zoom_blur, elastic_transform too.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def coverage(
    models: Models,
    *,
    data: str | None = None,
    need: int = 128,
    other_data: Sequence[str] = (),
    write: str | Path | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How many tokens of calibration data until every expert of every layer has enough of them?

    For GPTQ, AWQ or NVFP4: the share of experts with n tokens over the tokens (patches) of the data, in random orders
    of the inputs, beside an even router (coupon collector); the experts that never get n; which of several data sets
    covers most with as many tokens; and a small subset of inputs that is enough.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        need: Tokens n that every expert of every layer should have.
        other_data: Other data sets, to compare with ``data`` for as many tokens each.
        write: JSON lines to write the ids of a small subset into: experts that have n tokens in the data have them in
            it.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def determinism(
    models: Models,
    *,
    data: str | None = None,
    batches: Sequence[int] = (1, 8),
    padding: int = 16,
    repeats: int = 1,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Does routing depend on how the model is run: batch size, place in the batch, padding?

    Runs the same inputs again, in batches of other sizes, at another place in the batch, and texts with more padding.
    Each run is compared with the first run of the batch. Even where only the rounding of sums differs, near ties may
    change experts.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        batches: Batch sizes to try besides ``batch_size``.
        padding: Padding tokens added to texts; 0 = none.
        repeats: How often the batch is run again unchanged.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def discontinuity(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'gaussian_noise',
    steps: int = 200,
    until: float | None = None,
    images: Sequence[str] = (),
    files: str | Path | Sequence[str | Path] = (),
    count: int = 3,
    pick: str = 'random',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> DiscontinuityResult:
    """How far does the output jump when tokens switch experts as a perturbation grows?

    Every switch is located by bisection. Its jump is measured at a single input, by replaying the routing before the
    switch.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: A view with a severity.
        steps: Equal steps along the severity, at least 200.
        until: Largest severity; default: the last of the view's own steps.
        images: Names of images of the data set; default: all.
        files: An image file of your own.
        count: Number of images to draw.
        pick: Which images are drawn: random ones, or those with the largest jump of any checkpoint.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def drift(
    traces: str | Path | Sequence[str | Path],
    *,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    unit: str | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """How far does routing move during training? Each recorded checkpoint against the first and the last.

    Agreement with κ and intervals in each layer, for checkpoints of one model on the same inputs. The steps of the
    training are the numbers in the names of the files, where these grow.

    Args:
        traces: Files of moeprobe trace record or import, one per checkpoint, in the order of the training.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared.
    """

def evaluate(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Accuracy, top-5 accuracy and cross-entropy on clean images, and images per second.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def experts(
    models: Models,
    *,
    data: str | None = None,
    loss: float | None = None,
    experts_per_layer: int | None = None,
    draws: int | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Which experts are dispensable, and which are redundant?

    In one layer at a time, all tokens get other sets: without one expert, with one expert on every token, drawn at
    random, or relabeled. The rise of the loss is measured for each. With many experts, some of each layer are measured
    one by one, and one drawn for each input stands for the mean over all. For moeprobe's own models, the outputs of all
    experts on the same patches are compared as well. ```loss`` 0.01` lists the experts that may go, each alone, at a
    loss below 0.01.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        loss: List the experts whose ban alone raises the loss by less than this, in nats; default: no list.
        experts_per_layer: Experts of each layer that are banned and forced one by one, drawn by their load; default
            all, or as many as 100 passes per input allow, and at least one.
        draws: Random choices, and permutations, of experts that are drawn for each input; default 4, or 1 where experts
            are drawn, too.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def fewshot(
    models: Models,
    *,
    data: str | None = None,
    shots: Sequence[int] = (10,),
    draws: int = 5,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How good are the features for few labeled images? Ridge regression on the frozen pre-logits.

    The shots are drawn from the train split; accuracy is measured on the images of ``split``. The strength of the penalty
    is chosen on other training images, never on images of ``split``.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        shots: Training images per class, e.g. 1,5,10,25.
        draws: Draws of the training images, the same for all checkpoints.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def flips(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'gaussian_noise',
    severities: Sequence[float] | None = None,
    patches: int = 8,
    later: str = 'fixed',
    predict: Sequence[str] = (),
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """What does it cost when one token gets another set of experts?

    In one layer, one sampled token of the clean image gets another set; everything else stays. The set is with the
    runner-up in place of the last (or first) chosen expert, drawn at random, or the one chosen under a perturbation.
    Its weights are recomputed. For texts, it prices the next token and all that follow; name a view of texts.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: A view with a severity that leaves patches in place.
        severities: The severity of the perturbation; default: the view's strongest.
        patches: Patches of an image that are flipped, in each layer to each kind of set.
        later: Choices of later layers: fixed as in the clean pass, or free to follow.
        predict: Other views, each at all its severities: do prices add up to what their flips cost?
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def frames(
    models: Models,
    *,
    data: str | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How often does routing flip along the frames of a clip?

    Compares each frame with the one before and with the first of its clip. The chance line is the same frame of another
    clip. A patch is compared with the patch at its place, so movement counts as a flip. Intervals are over clips.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def indexer(
    first: str | Path,
    second: str | Path,
    *,
    model_config: str | Path,
    start: int | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """Do two captures of a sparse-attention indexer (DeepSeek-V3.2, V4, GLM-5) select the same keys?

    Overlap of the keys that each query selects, per layer and by position, corrected for chance, with intervals over
    requests. Chance depends on how many keys the query sees.

    Captures with physical slots, shifted or truncated rows, or duplicates are refused.

    Args:
        first: Responses of a server with indexer_topk; the reference of the comparison.
        second: Responses to the same requests, matched by their ids.
        model_config: config.json of the model: index_topk, and which layers have an indexer.
        start: Position of each sequence's first row, if the server was asked to leave out leading rows.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a file is not as documented, or
            its selections are not of an indexer.
    """

def margins(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'gaussian_noise',
    sigmas: Sequence[float] | None = None,
    draws: int = 8,
    small: float = 0.01,
    transfer: str | None = None,
    transfer_severity: float | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How much noise changes a token's set of experts, and do margins predict it?

    One draw of noise grows from level to level: at which does each set change first? A few draws of small noise say how
    far noise moves each margin, and so how likely each set is to change at every level.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: gaussian_noise of images, or embedding_noise of texts.
        sigmas: Levels of the nested noise, its standard deviations; default: the view's own.
        draws: Draws of small noise from which the sensitivity of a margin is estimated.
        small: Standard deviation of the small noise.
        transfer: Another perturbation whose flips margins predict: a view, of a pair of views its second, or bfloat16.
        transfer_severity: Severity of that perturbation; default: the view's strongest.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def match_ratio(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'random_crop',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """How often do corresponding patches of two random views choose the same experts?

    Top-1, top-2 and order-agnostic match per MoE layer: raw, by chance, and beyond chance (κ); CLS separately.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: A view that makes pairs. With parameters: NAME,key=value.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def mismatch(
    model: Any,
    *,
    tokens: str | Path,
    routing: str | Path,
    images: str | Path | None = None,
    gates: str = 'recomputed',
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    limit: int | None = None,
    batch_size: int = 8,
    device: str = 'auto',
    dtype: str = 'auto',
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """How much of the mismatch between a server and the model is routing?

    The model scores the server's generated tokens twice: with its own routing, and with the server's choices of
    experts. Reports, for both, mean absolute difference of log-probability and k3 divergence from the server's, with
    intervals over requests. For requests with pictures, also where the tokens of one kind alone repeat the choices.

    Args:
        model: The language model that was served.
        tokens: The server's responses, with token ids and log-probabilities of the generated tokens.
        routing: Trace of the same requests: moeprobe trace import.
        images: Folder with the pictures of ``tokens``: REQUEST.png, or REQUEST/ with several, in the order of their
            names.
        gates: Weights of the replayed experts: recomputed by the model's routers, or replayed from the trace.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a file is not as it should be, the
            two are not of one model, or its choices cannot be replayed.
    """

def noise_sweep(
    models: Models,
    *,
    data: str | None = None,
    sigmas: Sequence[float] | None = None,
    attribute: bool = False,
    gates: str = 'recomputed',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """The gaussian_noise sweep: does noise change which experts the patches choose, and the answer?

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        sigmas: Standard deviations, in units of the [0, 1] pixel range.
        attribute: Replay clean routing on perturbed pixels and vice versa: how much of the change is due to switching?
        gates: With ``attribute``: weights of the replayed experts, recomputed (for the pixels) or replayed as well.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def overlay(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    files: str | Path | Sequence[str | Path] = (),
    count: int = 4,
    view: str = 'gaussian_noise',
    severity: float | None = None,
    animate: bool = False,
    severities: Sequence[float] | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> OverlayResult:
    """Draw the expert of each patch or token, clean and perturbed, and outline those that changed their experts.

    Each expert tints its patches, or the tokens of a text, in its own color; of several experts the first one does.
    An outline says that the set of experts changed, dashes that only the first of the same set did. With ``animate``
    each layer of an image model gets a looping GIF, its single frames, and a strip of the first image: all severities
    scale one draw.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        images: Names of images or texts of the data set.
        files: An image file of your own.
        count: How many images or texts, if none is named.
        view: A view with a severity.
        severity: Severity of the view; 0.2 if not given.
        animate: Show the routing as the severity grows: GIF, frames and a strip.
        severities: Several: the steps of ``animate`` (default: the view's own) and of the slider in a report. Other
            figures show the strongest.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def precision(
    models: Models,
    *,
    data: str | None = None,
    parts: Sequence[str] = ('router', 'experts', 'attention', 'rest'),
    formats: Sequence[str] = ('bf16', 'fp16', 'fp8_e4m3', 'int8', 'int4_g128'),
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Which parts of a model can be quantized without changing the routing?

    The weights of one part at a time, and of the whole model, are rounded to each format. Each rounded model is
    compared with the original on the same inputs: match and κ of each layer, accuracy, and for language models the
    log-probability of the text. Rounding is to the nearest, without calibration, with one scale per output (int4: per
    128 inputs).

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        parts: Parts whose weights are rounded: router, experts, attention, rest.
        formats: Formats: bf16, fp16, fp8_e4m3, int8, int4_g128.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def prefetch(
    models: Models,
    *,
    data: str | None = None,
    loaded: Sequence[int] | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Does the next router know a layer earlier which experts it will choose, so that they can be loaded ahead?

    Applies the router of each MoE layer to the input of the MoE layer before: share of a token's experts among the m
    experts that it ranks highest there, beside the m busiest experts of other inputs and an even router. m is k, 2 k
    and 4 k by default.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        loaded: Experts of each layer that are loaded ahead; default k, 2 k and 4 k, or all but one where a layer has no
            more.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def record(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'clean',
    severities: Sequence[float] | None = None,
    all_gates: bool = False,
    tokens: str | Path | None = None,
    images: str | Path | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Recorded:
    """Record which experts each token chooses, as Parquet files: OUT/CHECKPOINT/VIEW.parquet.

    The reference of a view is recorded too: the clean image, or the first of two random views. With a language model,
    texts (``data`` text:FILE) are recorded, or the sequences of a server's responses (``tokens``), each in one pass:
    OUT/CHECKPOINT/tokens.parquet.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: Perturbation to record as well.
        severities: Severities; default: the view's own steps.
        all_gates: Keep every gate, not only the chosen experts' and a summary.
        tokens: File of a server's responses with token ids, which a language model reads instead of ``data``.
        images: Folder with the pictures of ``tokens``: REQUEST.png, or REQUEST/ with several, in the order of their
            names.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def regret(
    models: Models,
    *,
    data: str | None = None,
    tried: int = 8,
    patches: int = 1,
    delta: float = 0.01,
    weights: str = 'router',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Is the router right, or would other experts have been better?

    One token of one layer gets other experts in place of the router's choice, one choice after the other: each expert
    (k = 1), or the set with one expert exchanged (k > 1). How many of them are worse, how far does the router's choice
    lead, what would the best have gained, and do gates say so? A random choice stands beside it.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        tried: Other choices that are tried for a token; of more, so many are drawn at random for each token.
        patches: Patches of an image, or tokens of a text, that are sampled in each layer.
        delta: Nats by which another choice must be better to count as better.
        weights: Weights in a tried choice: router = as the router weighs experts; equal = one that comes in gets the
            weight of the one that leaves.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def routes(
    models: Models,
    *,
    data: str | None = None,
    images: Sequence[str] = (),
    count: int = 2,
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> RoutesResult:
    """What do the experts specialize in: classes, positions, colors?

    Tokens per expert, layer, class and position; what experts say about each, beyond what permuted images give; how
    evenly the experts are loaded, and how differently from image to image; which experts share tokens. With a
    vision-language model: which experts see pictures? With ``data`` checkerboard: do patches keep their expert by color
    or by place?

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        images: Names of images to draw a sheet of.
        count: Number of images with a sheet, if none is named.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def s_matrix(
    models: Models,
    *,
    data: str | None = None,
    view: str = 'random_crop',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Which experts do the two views of a patch weight together? The matrix S that PRC pulls towards the identity.

    S (experts x experts) over all corresponding patches of the data set, as a heat map; the means of its diagonal and
    of the rest, and both terms of the PRC loss (unweighted). The matrix itself is in table.csv. A second figure shows
    how one pair of patches enters S: two views, the gates of the patch in both, their product.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: A view that makes pairs. With parameters: NAME,key=value.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def sweep(
    models: Models,
    *,
    view: str,
    data: str | None = None,
    severities: Sequence[float] | None = None,
    attribute: bool = False,
    gates: str = 'recomputed',
    options: Options | None = None,
    watcher: Progress | None = None,
    **changes: Unpack[Keywords],
) -> Result:
    """Match with the clean image, confidence, load, agreement and accuracy as a perturbation grows.

    Args:
        models: checkpoints, loaded or by path: one, or a list; of several, differences from the first are paired.
        data: data set, ``name`` or ``name:location``; None = the one that the checkpoints were trained on.
        view: A view with a severity. With parameters: NAME,key=value.
        severities: Severities; default: the view's own steps.
        attribute: Replay clean routing on perturbed pixels and vice versa: how much of the change is due to switching?
        gates: With ``attribute``: weights of the replayed experts, recomputed (for the pixels) or replayed as well.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: something named does not exist or does not fit.
    """

def trace_balance(
    trace: str | Path,
    *,
    ranks: int | None = None,
    placement: str | Path | None = None,
    windows: int = 8,
    every: int | None = None,
    periods: str | Path | None = None,
    baseline: int = 20,
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """Do hot experts stay hot over time, and is the load of expert-parallel ranks even?

    Overlap of the hot experts (the eighth with the most choices) of one window of requests and the next, with chance
    and the overlap of shuffled requests. With ``ranks`` or ``placement`` also the load of the busiest rank over the
    mean, also for a greedy placement, made on the first half of the requests and judged on the second. With ``every``
    200, also whether the load has moved since the first batches, looked at again after each.

    Args:
        trace: File of moeprobe trace record or trace import, or a folder of its parts.
        ranks: Ranks of expert parallelism, each with as many consecutive experts.
        placement: Experts of each rank instead: JSON list of lists, the same by layer, an expert map of vllm-ascend, or
            CSV expert,rank.
        windows: Windows of requests that follow one another in the file.
        every: Also say after each batch of so many requests, e.g. 200, whether the load has moved since the baseline;
            the interval holds however often you look.
        periods: Batches by a CSV with the columns image_id and unit (e.g. the hour of each request), in place of
            ``every``. Periods should be complete: the last one counts as much as any other.
        baseline: Batches at the beginning that set the usual load, with ``every`` or ``periods``.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or the trace has too few requests or
            no choices of tokens, or the ranks or the placement do not fit.
    """

def trace_batches(
    traces: str | Path | Sequence[str | Path],
    *,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """How many experts do T tokens use, and which experts sleep through a whole request?

    Distinct experts of 1, 2, 4, ... 4,096 consecutive tokens of a request, beside tokens of as many requests, which
    choose independently with the same loads, and an even router. Experts that a request never uses while others do,
    beside independent tokens; and for each expert the share of requests in which it sleeps.

    Args:
        traces: Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a trace holds no sequences of
            tokens that choose.
    """

def trace_coverage(
    traces: str | Path | Sequence[str | Path],
    *,
    need: int = 128,
    write: str | Path | None = None,
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """How many recorded tokens until every expert of every layer has enough of them?

    For GPTQ, AWQ or NVFP4: the share of experts with n tokens over the tokens of a recording, in random orders of its
    requests, beside an even router (coupon collector); the experts that never get n; which of several recordings covers
    most with as many tokens; and a small subset of requests that is enough.

    Args:
        traces: Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.
        need: Tokens n that every expert of every layer should have.
        write: JSON lines to write the ids of a small subset into: experts that have n tokens in the data have them in
            it.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a trace holds no tokens that
            choose.
    """

def trace_locality(
    traces: str | Path | Sequence[str | Path],
    *,
    cache: Sequence[int] | None = None,
    batch: int = 1,
    bandwidth: str | None = None,
    expert_bytes: str | None = None,
    model_config: str | Path | None = None,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
    unit: str | None = None,
) -> Result:
    """Does the next token use the same experts, and how many of them does a cache find?

    Share of a token's experts that the next token of the sequence has too, with chance from other sequences and from
    other tokens of the same sequence. Hit rates of caches that keep some experts of each layer: LRU, LFU, the busiest
    experts of other requests, and the optimum, beside random eviction and an even router; the size at which 90 % hit;
    bytes and tokens per second. Prompt and generated tokens also apart.

    Args:
        traces: Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.
        cache: Experts of each layer that caches hold, e.g. 16,32; default shares of all.
        batch: Requests that are served at once and take turns token by token; they share caches.
        bandwidth: Bytes per second from where the other experts are loaded, e.g. 25GB/s.
        expert_bytes: Bytes of an expert, e.g. 9.4MB.
        model_config: config.json of the model, which says the bytes of an expert instead.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a trace holds no sequences of
            tokens that choose.
    """

def trace_prefetch(
    traces: str | Path | Sequence[str | Path],
    *,
    loaded: Sequence[int] | None = None,
    match: str = 'names',
    options: Options | None = None,
    watcher: Progress | None = None,
    layers: str | Sequence[str] | None = None,
    names: str | Sequence[str] | None = None,
    seed: int = 0,
    out: str | Path | None = None,
    overwrite: bool = False,
    figures: bool = True,
    svg: bool = False,
    command: str = '',
) -> Result:
    """Which experts come next: do this layer's choices, or the previous token's, predict the next layer's?

    Share of a token's experts among the m experts that are predicted from the layer before, from the previous token,
    or from both, with frequencies fitted on other requests (cross-validated); beside the m busiest experts of other
    requests and an even router. m is k, 2 k and 4 k by default. The layer before is that of the recording, whether
    ``layers`` chooses it or not.

    Args:
        traces: Files of moeprobe trace record or trace import, or folders of parts; the first is the reference.
        loaded: Experts of each layer that are loaded ahead; default k, 2 k and 4 k, or all but one where a layer has no
            more.
        match: How inputs of two files belong together: names, or tokens where the names differ and token ids are known.
        options: what all questions have in common; other keywords are applied to them by name (``limit=100``).
        watcher: receives how the run advances; None = a progress bar in a notebook.

    Raises:
        UserError: a file is damaged or missing, or recordings cannot be compared, or a trace holds no sequences of
            tokens that choose.
    """
