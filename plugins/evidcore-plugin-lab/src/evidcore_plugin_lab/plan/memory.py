"""Memory of a stage, worked out from shapes before anything is built.

Bytes of tensors on one device, which holds the whole model where `fsdp` does not shard it: nothing of Python,
CUDA's context (about 0.5 GB) or an allocator's gaps. With

    P, T    parameters of the whole model, and of what is trained
    M, V    of the language model: parameters of its layers' matrices, and words
    L, h, q, k, f   its layers, width, width of queries and of keys, inner width of the MLP
    n       positions that the layers see in one forward pass: rows x (prompt + answer); with prompts shared,
            prompts x (prompt + answers x answer)
    m       positions whose keys and values are read: n; with prompts shared, rows x (prompt + answer) +
            prompts x prompt
    w       cells of the masks: rows x (prompt + answer)^2; with prompts shared, rows x answer x (prompt +
            answer) + prompts x prompt^2
    N       positions whose token is predicted in one pass; on a CPU, where trl's head heeds no labels,
            n where sampled answers are scored without sharing prompts
    a       bytes of a number in matrix products: 4 in float32, 2 in bfloat16
    B, K    parameters that `model.bfloat16` keeps so, and of adapters that earlier stages left beside them
    Q       of B, those that lie in 4 bits: `model.load_in_4bit`

and weights in float32, as both trainers keep them (bfloat16 is autocast around them), but for B:

    weights      4 (P + K) - 2 B - 23/16 Q: 4 bits, and for 64 numbers a scale in float32
    reference    4 x the parts that are trained: its copy, where beta > 0 or rows are replayed, without LoRA
    gradients    4 T
    optimizer    8 T for AdamW; Muon keeps 4 for each number of a matrix
    casts        bfloat16 only: 2 M, the layers' matrices as products read them; none where they lie so, and
                 the largest one where they lie in 4 bits, which are unpacked for each product. Kept
                 for the backward pass; with checkpointed activations and matrices that are frozen (LoRA's
                 base too), those of one layer: autocast keeps a cast only of a weight that is trained.
                 While answers are sampled the head's too, and in evaluations one matrix or the head alone
    activations  of the language model, kept for the backward pass: L (n b + m 2 q a + w a), where
                     b = 4 (6 h + 2 q + 4 f)  float32, trained        b = 26 h + 4 q + 8 f  bfloat16, trained
                     b = 4 (2 h + 2 q + 3 f)  float32, frozen         b = 8 h + 4 q + 6 f   bfloat16, frozen
                 and q a more where prompts are shared. With checkpointing: 4 n L h, and one layer's.
                 Of encoder and bridge: found by a pass on tensors without storage (`fake_pass`).
    replay       activations of the replayed rows as above, kept at the same time, and for each token of their
                 answers 5 x 4 V: logits in float32, both log-probabilities, their products, the gradient
    head         logits in tiles: min(N, 4096) x 32768 numbers, and h N x 4
    cache        keys and values of prompts and answers that are sampled together, those of a whole step up
                 to 256 rows: (prompts x prompt + rows x answer) L 2 k a
    prompts      what a layer makes of the prompts that are sampled together, without gradients:
                 prompts x prompt x (16 h + a (h + 3 f)), one a f more for adapters that lie beside weights
                 in bfloat16, and what the bridge gives (`fake_pass`)
    logits       V x rows x 28: what choosing the next token of each row makes

Of D processes each takes one D-th of a step's prompts, and

    buckets      4 T without `fsdp`: gradients lie once more in what is exchanged
    with `fsdp`  weights, reference, gradients and optimizer are divided by D; `gathered` is a P in all while
                 answers are sampled (2 P or 4 P), and that of one layer while they are scored and learnt from

A stage's peak is the greatest of three moments; each has weights, reference and optimizer besides:

    update       casts + activations + head, and the gradients of the passes before; where one pass makes the
                 step, gradients take the place of activations one after another: the greater counts
    sampling     casts + cache + the greater of prompts and logits (GRPO, evaluate, audit), and with `fsdp`
                 the gathered weights, which are their own casts
    encoding     what a frozen encoder holds for a pass of volumes (`fake_pass`)
"""

import dataclasses
import functools
from typing import Literal

from evidcore_plugin_lab.plan.shapes import TextShape

Precision = Literal["float32", "bfloat16"]
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
HEAD_TOKENS, HEAD_WORDS = 4096, 32768  # a tile of logits: trl.kernels.chunked_logprob, trl.trainer.utils
SAMPLED_ROWS = 256  # evidcore.train.sampler
HEAD_COPIES = 6  # float32 copies of a tile where Triton does not fold it into one: on a CPU
REPLAY_COPIES = 5  # of logits over the whole vocabulary: evidcore.train.trl.grpo
FLOAT = 4
NUMBER_BYTES = {"float32": FLOAT, "bfloat16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Batch:
    """What goes through the model together."""

    prompts: int
    answers: int  # to each prompt
    prompt_tokens: int
    answer_tokens: int
    question_tokens: int = 0  # of these, read before what is predicted
    shares_prompts: bool = False  # one row for a prompt with all its answers, when they are scored
    passes: int = 1  # forward passes of a step

    @property
    def sampled_rows(self) -> int:
        """Answers that are sampled together: those of a whole step, up to the sampler's bound."""
        return min(self.rows * self.passes, SAMPLED_ROWS)

    @property
    def sampled_prompts(self) -> int:
        return max(1, self.sampled_rows // self.answers)

    @property
    def rows(self) -> int:
        return self.prompts * self.answers

    @property
    def positions(self) -> int:
        """Positions that the layers see when answers are scored."""
        if self.shares_prompts:
            return self.prompts * (self.prompt_tokens + self.answers * self.answer_tokens)
        return self.rows * (self.prompt_tokens + self.answer_tokens)

    @property
    def read(self) -> int:
        """Positions whose keys and values are read; siblings read their prompt's each for themselves."""
        apart = self.rows * (self.prompt_tokens + self.answer_tokens)
        return apart + self.prompts * self.prompt_tokens if self.shares_prompts else apart

    @property
    def mask_cells(self) -> int:
        """Pairs of positions of which the masks tell whether one sees the other."""
        whole = self.prompt_tokens + self.answer_tokens
        if self.shares_prompts:
            return self.rows * self.answer_tokens * whole + self.prompts * self.prompt_tokens**2
        return self.rows * whole**2

    @property
    def predicted(self) -> int:
        """Positions whose token is predicted."""
        return self.rows * (self.answer_tokens - self.question_tokens)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Trained:
    """What a stage trains."""

    parameters: int
    matrices: int = 0  # of these, numbers in matrices that Muon takes; 0 with AdamW
    is_language: bool = False  # in full or by adapters: the layers' inputs are kept
    is_adapted: bool = False  # by adapters: its matrices are frozen
    copied: int = 0  # parameters of the KL reference's copy


@dataclasses.dataclass(frozen=True, kw_only=True)
class Weights:
    """Parameters of the whole model, as they lie in memory."""

    parameters: int
    in_bfloat16: int = 0  # of these
    in_4bit: int = 0  # of those in bfloat16
    adapters: int = 0  # that earlier stages left beside those in bfloat16
    is_language_rounded: bool = False  # its matrices are among those in bfloat16

    @property
    def size_bytes(self) -> int:
        in_float32 = FLOAT * (self.parameters + self.adapters)
        return in_float32 - (FLOAT - 2) * self.in_bfloat16 - self.in_4bit * 23 // 16

    def unpacked_bytes(self, text: TextShape) -> int:
        """Return the bytes of the largest matrix in 4 bits as a product reads it: in bfloat16."""
        return 2 * max(before * after for before, after in text.matrices()) if self.in_4bit else 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Memory:
    """Bytes by what they hold, and the greatest sum at a moment."""

    weights: int
    reference: int = 0
    optimizer: int = 0
    gradients: int = 0
    casts: int
    activations: int = 0  # language model, encoder and bridge
    replay: int = 0
    head: int = 0
    cache: int = 0
    prompts: int = 0
    logits: int = 0
    encoding: int
    buckets: int = 0
    gathered: int = 0
    peak: int


def training(
    text: TextShape,
    whole: Weights,
    trained: Trained,
    batch: Batch,
    precision: Precision,
    *,
    seen_bytes: int = 0,
    shown_bytes: int = 0,
    encoding_bytes: int = 0,
    is_checkpointed: bool = False,
    samples: bool = False,
    replayed: Batch | None = None,
    processes: int = 1,
    is_sharded: bool = False,
) -> Memory:
    """Return what a step of `sft` or `grpo` needs in one of its processes.

    `batch` is a forward pass; encoder and bridge keep `seen_bytes` for the backward pass, the bridge gives
    `shown_bytes` for the prompts that are sampled together, and a frozen encoder holds `encoding_bytes` while
    it encodes.
    """
    keeps_casts = trained.is_language and not trained.is_adapted
    cast_layers = 1 if is_checkpointed and not keeps_casts else text.layers
    is_cast = precision == "bfloat16" and not whole.is_language_rounded
    casts = 2 * text.layer_matrices * cast_layers if is_cast else whole.unpacked_bytes(text)
    layers = functools.partial(
        kept_for_backward, text, precision=precision, is_trained=trained.is_language,
        is_checkpointed=is_checkpointed,
    )  # fmt: skip
    activations = seen_bytes + layers(batch)
    head = head_bytes(text, batch, precision, samples=samples, is_rounded=whole.is_language_rounded)
    shards = processes if is_sharded else 1
    weights, reference = whole.size_bytes // shards, FLOAT * trained.copied // shards
    gradients = FLOAT * trained.parameters // shards
    optimizer = 2 * gradients - FLOAT * trained.matrices // shards
    buckets = FLOAT * trained.parameters if processes > shards else 0
    at_rest = weights + reference + optimizer + buckets
    scored_bytes = REPLAY_COPIES * FLOAT * text.vocabulary
    replay = 0 if replayed is None else layers(replayed) + replayed.predicted * scored_bytes
    gathered = a_layer_whole = 0
    if shards > 1:  # in the precision of the products: no casts beside them
        casts, a_layer_whole = 0, NUMBER_BYTES[precision] * text.layer_matrices
        gathered = NUMBER_BYTES[precision] * whole.parameters if samples else a_layer_whole
    forward = casts + a_layer_whole + activations + replay + head
    update = gradients + forward if batch.passes > 1 else max(gradients, forward)
    sampled, sampling = sampling_bytes(text, batch, precision, whole, shown_bytes) if samples else ({}, 0)
    sampling_casts = gathered or whole.unpacked_bytes(text)
    if shards == 1 and is_cast:  # those of what is trained are kept, the head's among them
        sampling_casts = casts + 2 * text.vocabulary * text.width if keeps_casts else passing_cast(text)
    peak = at_rest + max(update, sampling_casts + sampling, encoding_bytes)
    return Memory(
        weights=weights, reference=reference, optimizer=optimizer, gradients=gradients, casts=casts,
        activations=activations, replay=replay, head=head, encoding=encoding_bytes, buckets=buckets,
        gathered=gathered, peak=peak, **sampled,
    )  # fmt: skip


def answering(
    text: TextShape,
    whole: Weights,
    batch: Batch,
    precision: Precision,
    *,
    shown_bytes: int = 0,
    encoding_bytes: int = 0,
) -> Memory:
    """Return what an `evaluate` or `audit` stage needs: it computes as who trained the model samples."""
    is_cast = precision == "bfloat16" and not whole.is_language_rounded
    casts = passing_cast(text) if is_cast else whole.unpacked_bytes(text)  # none is kept: nothing is trained
    sampled, sampling = sampling_bytes(text, batch, precision, whole, shown_bytes)
    peak = whole.size_bytes + max(casts + sampling, encoding_bytes)
    return Memory(weights=whole.size_bytes, casts=casts, encoding=encoding_bytes, peak=peak, **sampled)


def sampling_bytes(
    text: TextShape, batch: Batch, precision: Precision, whole: Weights, shown_bytes: int
) -> tuple[dict[str, int], int]:
    """Return the bytes of sampling answers by what they hold, and how many there are at a moment."""
    cache = cache_bytes(text, batch, precision)
    prompts = shown_bytes + prompts_bytes(text, batch, precision, whole)
    logits = batch.sampled_rows * text.vocabulary * (3 * FLOAT + 2 * 8)  # two copies, two in float64
    return {"cache": cache, "prompts": prompts, "logits": logits}, cache + max(prompts, logits)


def passing_cast(text: TextShape) -> int:
    """Return the bytes of the largest cast of a weight that is not trained, the head's among them."""
    return 2 * max(text.vocabulary * text.width, *(before * after for before, after in text.matrices()))


def kept_for_backward(
    text: TextShape, batch: Batch, precision: Precision, *, is_trained: bool, is_checkpointed: bool = False
) -> int:
    """Return the bytes that the language model's layers keep: see the module's formula."""
    h, q, f = text.width, text.query_width, text.inner_width
    is_half = precision == "bfloat16"
    number_bytes = NUMBER_BYTES[precision]
    if is_trained:
        a_position = 26 * h + 4 * q + 8 * f if is_half else FLOAT * (6 * h + 2 * q + 4 * f)
    else:
        a_position = 8 * h + 4 * q + 6 * f if is_half else FLOAT * (2 * h + 2 * q + 3 * f)
    if batch.shares_prompts:  # what answers and prompts attend to is put together again
        a_position += q * number_bytes
    a_layer = batch.positions * a_position + (batch.read * 2 * q + batch.mask_cells) * number_bytes
    if is_checkpointed:
        return a_layer + text.layers * batch.positions * h * FLOAT
    return text.layers * a_layer


def head_bytes(
    text: TextShape, batch: Batch, precision: Precision, *, samples: bool, is_rounded: bool = False
) -> int:
    """Return the bytes of one tile of logits, its cast, if any, and of the gradient of the head's input."""
    scores_all = precision == "float32" and samples and not batch.shares_prompts
    scored = batch.positions if scores_all else batch.predicted
    rows = min(scored, HEAD_TOKENS)
    gradient = scored * text.width * FLOAT
    if precision == "bfloat16":
        cast = 0 if is_rounded else HEAD_WORDS * text.width * 2
        return rows * HEAD_WORDS * 2 + cast + gradient
    words = min(text.vocabulary, HEAD_WORDS)
    return rows * (HEAD_WORDS + HEAD_COPIES * words) * FLOAT + gradient


def cache_bytes(text: TextShape, batch: Batch, precision: Precision) -> int:
    """Return the bytes of keys and values while answers are sampled."""
    prompts, answers = batch.sampled_prompts * batch.prompt_tokens, batch.sampled_rows * batch.answer_tokens
    return text.layers * 2 * text.key_width * NUMBER_BYTES[precision] * (prompts + answers)


def prompts_bytes(text: TextShape, batch: Batch, precision: Precision, whole: Weights) -> int:
    """Return the bytes that a layer makes of the prompts that are sampled together."""
    h, f = text.width, text.inner_width
    number_bytes = NUMBER_BYTES[precision]
    wide = 4 if whole.adapters and whole.is_language_rounded else 3  # of inner width
    return batch.sampled_prompts * batch.prompt_tokens * (4 * h * FLOAT + number_bytes * (h + wide * f))
