"""Sequences of tokens, and the thread that decodes them in batches.

ONNX Runtime GenAI's generator decodes a batch whose rows begin together. So that requests may come and go, a batch is
made anew where that pays: its sequences, with all tokens that they have, are the prompts of the next one. A sequence
whose client reads too slowly leaves its batch in the same way, and enters another when the client has caught up.
Source: docs/text-models.md, "Generating text".
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from contextlib import nullcontext
from itertools import compress
from typing import NamedTuple

import numpy as np
import onnxruntime_genai as og

_log = logging.getLogger("genai")

# How long tokens are generated before they are looked at and sent: as long as a film shows a picture.
# A step reads all weights, so that nothing of this program is in the processor's caches afterwards: the first look
# at a token takes ten times as long as the second.
_TURN_S = 1 / 24
# Tokens that a sequence may be ahead of its client, beyond those that the server's window holds.
_MOST_UNSENT = 64
# How often a client is looked at for which alone the thread waits.
_LOOK_AGAIN_S = 0.02
# A step takes as long as this many rows, whatever the number of rows: it reads all weights.
_FIXED_ROWS = 4
_WEIGHT_OF_NEW = 0.2
# In place of minus infinity, which JSON does not have.
_LEAST_LOGPROB = -9999.0


class Options(NamedTuple):
    """How tokens are chosen. Sequences with equal options can be decoded together.

    `seed` is None for any; `number` keeps sequences with a seed apart, so that others do not change their answers.
    """

    do_sample: bool
    temperature: float
    top_k: int
    top_p: float
    repetition_penalty: float
    adapter: str
    seed: int | None
    number: int

    def search(self):
        """As the library's search options."""
        found = {"do_sample": self.do_sample, "repetition_penalty": self.repetition_penalty}
        if self.do_sample:
            found.update(temperature=self.temperature, top_k=self.top_k, top_p=self.top_p)
        if self.seed is not None:
            found["random_seed"] = self.seed
        return found


class Text:
    """The text of the tokens that were generated, up to a stop string.

    What may be the beginning of a stop string is kept back until more is known.
    """

    def __init__(self, pieces, stops):
        """`pieces` gives the text of each token."""
        self._pieces = pieces
        self._stops = stops
        self._kept = ""

    def add(self, token):
        """The text that is certain now, and whether a stop string has come."""
        piece = self._pieces.decode(token)
        if not self._stops:
            return piece, False
        self._kept += piece
        ends = [at for at in map(self._kept.find, self._stops) if at >= 0]
        if ends:
            text, self._kept = self._kept[: min(ends)], ""
            return text, True
        keep = max((_overlap(self._kept, stop) for stop in self._stops), default=0)
        text, self._kept = self._kept[: len(self._kept) - keep], self._kept[len(self._kept) - keep :]
        return text, False

    def rest(self):
        """What was kept back."""
        text, self._kept = self._kept, ""
        return text


def _overlap(text, stop):
    """How many characters at the end of `text` begin `stop`."""
    return next((size for size in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:size])), 0)


class Sequence:
    """The tokens of one request, and what its client has got of them. On the decoding thread, once it was added."""

    def __init__(self, answer, prompt, limit, options, text, candidates=None):
        """`answer` tells the client; `limit` is how many tokens there may be with those of `prompt`.

        `candidates` is how many of the likeliest tokens the client wants to know at each place, None for nothing.
        """
        self.answer = answer
        self.tokens = list(prompt)
        self.prompt_size = len(self.tokens)
        self.limit = limit
        self.options = options
        self.candidates = candidates
        # For each unsent token, itself and the likeliest ones, as token, logarithm of its probability and rank.
        self.places = []
        self._text = text
        self._unsent = ""
        self._unsent_tokens = 0
        self.finish_reason = ""

    @property
    def generated(self):
        return len(self.tokens) - self.prompt_size

    @property
    def is_behind(self):
        """Whether the client has taken so little that nothing should be generated for it now."""
        return self._unsent_tokens >= _MOST_UNSENT and self.answer.is_full()

    def note_place(self, logits, token):
        """Note how likely `token` was, which is chosen by `logits`, and which ones were the likeliest."""
        rest = logits - logits.max()
        total = logits.max() + np.log(np.exp(rest).sum())
        ranks = {token: 1 + int(np.count_nonzero(logits > logits[token]))}
        for rank in range(1, self.candidates + 1):  # faster than a partition, which takes long where many are equal
            each = int(rest.argmax())
            ranks.setdefault(each, rank)
            rest[each] = -np.inf
        self.places.append(
            [(each, max(float(logits[each] - total), _LEAST_LOGPROB), rank) for each, rank in ranks.items()]
        )

    def add(self, tokens, eos):
        """Note tokens and send their text. Returns whether the sequence has ended; what follows its end is ignored."""
        for token in tokens:
            self.tokens.append(token)
            self._unsent_tokens += 1
            is_stopped = token in eos
            if not is_stopped:
                text, is_stopped = self._text.add(token)
                self._unsent += text
            if is_stopped or len(self.tokens) >= self.limit:
                self.end("stop" if is_stopped else "length")
                return True
        self.send()
        return False

    def send(self):
        """Send what there is, unless the client is behind."""
        if self._unsent and self.answer.streams and not self.answer.is_full():
            self.answer.send(self._unsent, "", self)
            self._unsent, self._unsent_tokens = "", 0
            self.places.clear()

    def end(self, reason):
        self.finish_reason = reason
        del self.places[self._unsent_tokens :]
        self.answer.send(self._unsent + self._text.rest(), reason, self)


class Speed:
    """What steps and prompts take, as measured. Times in seconds."""

    def __init__(self):
        self._row = 0.0
        self._token = 0.0

    def note_step(self, rows, duration):
        self._row += (duration / (_FIXED_ROWS + rows) - self._row) * (_WEIGHT_OF_NEW if self._row else 1)

    def note_prompt(self, tokens, duration):
        self._token += (duration / tokens - self._token) * (_WEIGHT_OF_NEW if self._token else 1)

    def pays_to_join(self, rows, tokens, alive, rounds):
        """Whether batches of `rows` rows should become one of `alive` sequences, which reads `tokens` tokens again.

        The sequences have about `rounds` tokens to go.
        """
        separate = sum(_FIXED_ROWS + count for count in rows)
        saved = (separate - (_FIXED_ROWS + alive)) * self._row * rounds
        return saved > tokens * self._token + _FIXED_ROWS * self._row


def length_of(sequences, context):
    """The tokens of a row of a batch: it is padded to the longest one, and may need all that any of them has left."""
    width = max(len(sequence.tokens) for sequence in sequences)
    return min(context, width + max(sequence.limit - len(sequence.tokens) for sequence in sequences))


class Batch:
    """Sequences that are decoded together, with equal options. A row without a sequence has ended."""

    def __init__(self, model, sequences, adapters, pad, context, speed):
        """Reads the tokens of all `sequences`. Raises RuntimeError."""
        self.rows = list(sequences)
        self.options = options = sequences[0].options
        self.length = length_of(sequences, context)
        self._speed = speed
        self._steps = 0
        self._width = width = max(len(sequence.tokens) for sequence in sequences)
        tokens = np.full((len(sequences), width), pad, np.int32)
        for row, sequence in zip(tokens, sequences):
            row[: len(sequence.tokens)] = sequence.tokens
        parameters = og.GeneratorParams(model)
        parameters.set_search_options(max_length=self.length, batch_size=len(sequences), **options.search())
        begin = time.monotonic()
        self._generator = og.Generator(model, parameters)
        if options.adapter:
            self._generator.set_active_adapter(adapters, options.adapter)
        self._generator.append_tokens(tokens if len(sequences) > 1 else tokens[0])
        speed.note_prompt(tokens.size, time.monotonic() - begin)

    @property
    def alive(self):
        return [sequence for sequence in self.rows if sequence is not None]

    @property
    def is_done(self):
        return not self.alive or self._generator.is_done()

    def run(self, eos, seconds, arrived):
        """The next tokens of each row: one at first, then as many as `seconds` allow.

        Ends early when a row ends, or when something has `arrived`. Raises RuntimeError.
        """
        generate, get, clock = self._generator.generate_next_token, self._generator.get_next_tokens, time.monotonic
        lives = [sequence is not None for sequence in self.rows]
        left = [self.length - self._width - self._steps, *(each.limit - len(each.tokens) for each in self.alive)]
        most = min(left) if self._steps else 1
        found = []
        curious = [each for each in enumerate(self.rows) if each[1] is not None and each[1].candidates is not None]
        begin = clock()
        while True:
            # They are computed here, and not once more below.
            logits = self._generator.get_logits() if curious else None
            generate()
            tokens = get().tolist()
            found.append(tokens)
            for at, sequence in curious:
                if tokens[at] not in eos:
                    sequence.note_place(logits[at, -1], tokens[at])
            now = clock()
            if len(found) >= most or now - begin >= seconds or arrived or not eos.isdisjoint(compress(tokens, lives)):
                break
        if self._steps:  # the first one only chooses among what reading the prompt has computed
            self._speed.note_step(len(self.rows), (now - begin) / len(found))
        self._steps += len(found)
        return zip(*found)

    def drop(self, sequence):
        self.rows[self.rows.index(sequence)] = None


class Decoder:
    """Decodes sequences on a thread of its own. `add` and `close` on any other."""

    def __init__(self, model, *, context, eos, pad, most_sequences, most_tokens, together=nullcontext):
        """`together` makes a context: clients get what is sent in it at its end."""
        self._model = model
        self._together = together
        self._context = context
        self._eos = frozenset(eos)
        self._pad = pad
        self._most_sequences = most_sequences
        self._most_tokens = most_tokens
        self._adapters = og.Adapters(model)
        self.adapter_names = ()
        self._speed = Speed()
        self._changed = threading.Condition()
        self._arrived = deque()
        self._is_over = False
        self._waiting = deque()
        self._behind = []
        self._batches = []
        self._on_end = None
        self._own_thread = threading.Thread(target=self._run, name="decoder", daemon=True)

    def load_adapters(self, files):
        """Load adapters from `files`, by name. Raises RuntimeError."""
        for name, file in files.items():
            self._adapters.load(file, name)
        self.adapter_names = tuple(files)

    def start(self, on_end):
        """`on_end` is called with each sequence that has ended, on the decoding thread."""
        self._on_end = on_end
        self._own_thread.start()

    @property
    def waiting(self):
        return len(self._arrived) + len(self._waiting)

    def add(self, sequence):
        """Begin a sequence as soon as there is room. Raises ValueError for one that never fits."""
        if sequence.limit > self._most_tokens:
            raise ValueError(
                f"prompt and max_tokens make {sequence.limit} tokens, and there is memory for {self._most_tokens}: "
                "ask for fewer"
            )
        with self._changed:
            self._arrived.append(sequence)
            self._changed.notify()

    def close(self):
        """End the thread; what it has is not answered."""
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._own_thread.join()

    def _run(self):
        try:
            self._decode()
        except BaseException:
            # Nobody would be answered any more: the server answers all requests, and starts another process.
            _log.exception("the thread that decodes has failed")
            os._exit(1)

    def _decode(self):
        while True:
            with self._changed:
                while not (self._is_over or self._arrived or self._batches or self._waiting or self._behind):
                    self._changed.wait()
                if not (self._is_over or self._arrived or self._batches):
                    self._changed.wait(_LOOK_AGAIN_S)
                if self._is_over:
                    return
                self._waiting += self._arrived
                self._arrived.clear()
            self._turn()

    def _turn(self):
        """Let sequences come and go, and generate tokens for those that are decoded."""
        self._leave()
        for options, sequences in self._admitted().items():
            self._join(options, sequences)
        for batch in self._batches:
            alive = batch.alive
            try:
                found = batch.run(self._eos, _TURN_S / len(self._batches), self._arrived)
            except RuntimeError as error:
                self._fail(batch.alive, error)
                batch.rows = []
            else:
                with self._together():
                    for at, tokens in enumerate(found):
                        if (sequence := batch.rows[at]) is not None and sequence.add(tokens, self._eos):
                            batch.rows[at] = None
                if batch.is_done:  # its rows are full, though some sequences may not be
                    self._waiting.extendleft(batch.alive)
                    batch.rows = []
            for sequence in alive:
                if sequence.finish_reason:
                    self._on_end(sequence)
        self._batches = [batch for batch in self._batches if batch.alive]

    def _leave(self):
        """Part with sequences that nobody wants, and with those whose clients are behind."""
        for batch in self._batches:
            for sequence in batch.alive:
                if sequence.answer.is_cancelled():
                    batch.drop(sequence)
                    self._cancel(sequence)
                elif sequence.is_behind:
                    batch.drop(sequence)
                    self._behind.append(sequence)
        self._batches = [batch for batch in self._batches if batch.alive]
        for sequences in (self._waiting, self._behind):
            for sequence in [each for each in sequences if each.answer.is_cancelled()]:
                sequences.remove(sequence)
                self._cancel(sequence)
        for sequence in [each for each in self._behind if not each.answer.is_full()]:
            self._behind.remove(sequence)
            sequence.send()
            self._waiting.appendleft(sequence)

    def _cancel(self, sequence):
        sequence.end("cancelled")
        self._on_end(sequence)

    def _admitted(self):
        """The waiting sequences for which there is room, in their order, by their options."""
        rows = sum(len(batch.alive) for batch in self._batches)
        tokens = sum(len(batch.rows) * batch.length for batch in self._batches)
        found = {}
        while self._waiting and rows < self._most_sequences:
            sequence = self._waiting[0]
            group = [*found.get(sequence.options, ()), sequence]
            others = [each for options, each in found.items() if options != sequence.options]
            if tokens + sum(map(self._size, [*others, group])) > self._most_tokens:
                break
            self._waiting.popleft()
            rows += 1
            found[sequence.options] = group
        # Batches from which sequences have gone, or that could be one, may be made anew even if nobody comes.
        counts = Counter(batch.options for batch in self._batches)
        for batch in self._batches:
            if counts[batch.options] > 1 or 2 * len(batch.alive) <= len(batch.rows):
                found.setdefault(batch.options, [])
        return found

    def _size(self, sequences):
        return len(sequences) * length_of(sequences, self._context)

    def _join(self, options, arrived):
        """Begin a batch for the sequences that have `arrived`, together with those that have the same options."""
        batches = [batch for batch in self._batches if batch.options == options]
        running = [sequence for batch in batches for sequence in batch.alive]
        together = running + arrived
        if batches:
            width = max(len(sequence.tokens) for sequence in together)
            alone = len(arrived) * max((len(sequence.tokens) for sequence in arrived), default=0)
            rows = [len(batch.rows) for batch in batches] + ([len(arrived)] if arrived else [])
            rounds = sum(each.limit - len(each.tokens) for each in together) / len(together) / 2
            again = width * len(together) - alone
            pays = self._speed.pays_to_join(rows, again, len(together), rounds)
            if pays and self._size(together) <= self._most_tokens:
                self._batches = [batch for batch in self._batches if batch.options != options]
                arrived = together
        if arrived:
            try:
                self._batches.append(Batch(self._model, arrived, self._adapters, self._pad, self._context, self._speed))
            except RuntimeError as error:
                self._fail(arrived, error)

    def _fail(self, sequences, error):
        _log.error("decoding failed: %s", error)
        for sequence in sequences:
            sequence.finish_reason = "error"
            sequence.answer.fail(str(error))
