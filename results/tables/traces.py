"""Tables with one row per token, without an index: they are scanned, and an index would halve the speed of ingest."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

_CHOICE: Final = Column(
    "choice",
    "INTEGER",
    "number of the given text, 1 = the first that the task lists (behind a document's choices its further requests, "
    "such as choices without their context); NULL for tokens of answers",
    key=True,
    required=False,
)
_POSITION: Final = Column("position", "INTEGER", "of the token in the answer, 1 = first generated", key=True)
_TRACED_POSITION: Final = Column(
    "position", "INTEGER", "of the token in the answer, or in the given text behind its context, from 1", key=True
)
_TOKEN_KIND: Final = Column(
    "token_kind", "VARCHAR", "kind of word in generated data, as in token_kinds; NULL for other data", required=False
)
_GIVEN_TOKEN_LEFT_OUT: Final = "CASE WHEN choice IS NOT NULL THEN NULL ELSE token_id END"
"""Texts of data sets are given texts; an answer's tokens are the model's own."""
_GIVEN_LOGPROB: Final = Column(
    "logprob", "FLOAT[]", "log-probability of the given token by block, NULL for tokens of answers", required=False
)

TRACES: Final = (
    Table(
        "token_exit",
        "One row per attempt, document and token that was generated or, in a given text, scored: where it left.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _CHOICE,
            _TRACED_POSITION,
            Column(
                "token_id",
                "INTEGER",
                "token that was generated or given, NULL where an export left given ones out",
                redacted_sql=_GIVEN_TOKEN_LEFT_OUT,
            ),
            _TOKEN_KIND,
            Column("exit_layer", "SMALLINT", "block after which the token was emitted or scored"),
            Column(
                "blocks_run",
                "SMALLINT",
                "blocks executed for it (of a replay, which runs none: up to its exit, or all where KV policy or "
                "oracle runs all)",
            ),
            Column("score", "FLOAT", "the gate's confidence where the token left", required=False),
            Column("reason", "VARCHAR", "threshold (the gate said so) or last (no block was left)"),
            Column("head_rows", "INTEGER", "rows of the LM head multiplied for it, NULL for a replay", required=False),
            Column(
                "rejected",
                "INTEGER",
                "drafted tokens thrown away right before it was decided (it is the full model's choice in their "
                "place), NULL where nothing is verified",
                required=False,
            ),
            Column(
                "full_token_id",
                "INTEGER",
                "token of full depth's answer at this position, NULL behind its end and of given texts",
                required=False,
            ),
            Column(
                "score_half_width",
                "FLOAT",
                "by how much score may be off where bounds of the logits decided, NULL where it is exact",
                required=False,
            ),
            Column(
                "head_rows_int8",
                "INTEGER",
                "rows of an int8 copy of the LM head multiplied for it, NULL where heads are read exactly",
                required=False,
            ),
            Column(
                "head_fallbacks",
                "INTEGER",
                "how often the whole LM head was read for it because bounds left a decision open, NULL where heads "
                "are read exactly",
                required=False,
            ),
            Column(
                "logprob",
                "FLOAT",
                "natural logarithm of the given token's probability at the exit, NULL for tokens of answers",
                required=False,
            ),
            Column("full_logprob", "FLOAT", "at full depth, NULL where full depth was not scored", required=False),
            Column(
                "is_greedy",
                "BOOLEAN",
                "the given token is the most probable at the exit, NULL for tokens of answers",
                required=False,
            ),
            Column("full_is_greedy", "BOOLEAN", "at full depth, NULL where full depth was not scored", required=False),
        ),
        file="tokens",
        indexed=False,
    ),
    Table(
        "document_exit",
        "One row per attempt and document with generated tokens. Every ingest makes it of token_exit, so that "
        "questions about whole documents need not look for them among all tokens.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("is_known", "BOOLEAN", "the trace says what full depth emitted"),
            Column("first_divergence", "INTEGER", "first position of a token that is not full depth's", required=False),
            Column("divergence_score", "FLOAT", "the gate's score there", required=False),
            Column(
                "exit_layer",
                "SMALLINT[]",
                "by position; NULL where the positions of the document are not 1..n",
                required=False,
            ),
            Column("is_equal", "BOOLEAN[]", "the token is full depth's, by position, likewise", required=False),
        ),
        indexed=False,
    ),
    Table(
        "token_time",
        "One row per token, round and arm of an untraced decode whose clock is read after each token.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("round", "INTEGER", "from 0; even rounds begin with full depth, odd ones with the method", key=True),
            Column("arm", "VARCHAR", "method, or full (full depth)", key=True),
            _POSITION,
            Column("token_id", "INTEGER", "token that was generated, by a traced decode before"),
            Column("exit_layer", "SMALLINT", "block after which it was emitted, by the same; L for full depth"),
            Column("wall_ns", "BIGINT", "since the one before, or since the decode began"),
        ),
        file="token_times",
        indexed=False,
    ),
    Table(
        "prompt_token",
        "One row per attempt, document and token of a prompt as it was fed, of probes asked to record prompt-ids.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "position",
                "INTEGER",
                "of the token in the prompt, from 1; a prompt that was cut is shown as cut",
                key=True,
            ),
            Column("token_id", "INTEGER", "token that was fed, NULL where an export left it out", redacted_sql="NULL"),
        ),
        file="prompts",
        indexed=False,
    ),
    Table(
        "probe_token",
        "One row per attempt, document and probed token; lists have one entry per block 1..L.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _CHOICE,
            _TRACED_POSITION,
            Column(
                "token_id",
                "INTEGER",
                "token of full depth, or of the given text, NULL where an export left given ones out",
                redacted_sql=_GIVEN_TOKEN_LEFT_OUT,
            ),
            Column("full_token_id", "INTEGER", "most probable token after block L"),
            Column(
                "gold_token_id",
                "INTEGER",
                "token of the reference at this position, NULL behind its end",
                required=False,
                redacted_sql="NULL",
            ),
            _TOKEN_KIND,
            Column("first_match", "SMALLINT", "first block whose most probable token is full_token_id"),
            Column("stable_from", "SMALLINT", "first block from which it stays so"),
            Column("top1_id", "INTEGER[]", "most probable token after each block"),
            Column("top2_id", "INTEGER[]", "second most probable token after each block"),
            Column("top3_id", "INTEGER[]", "third most probable token after each block"),
            Column("rank_final", "INTEGER[]", "rank of full_token_id, 1 = most probable"),
            Column("p1", "FLOAT[]", "probability of the most probable token"),
            Column("p2", "FLOAT[]", "probability of the second most probable token"),
            Column("p3", "FLOAT[]", "probability of the third most probable token"),
            Column("p_final", "FLOAT[]", "probability of full_token_id"),
            Column("entropy", "FLOAT[]", "of the distribution over tokens, nats"),
            Column("logsumexp", "FLOAT[]", "of the logits"),
            Column(
                "cosine_previous",
                "FLOAT[]",
                "cosine of the state with that of the block before (the embedding before block 1)",
            ),
            Column("cosine_previous_normed", "FLOAT[]", "the same of final-normed states"),
            Column("cosine_last", "FLOAT[]", "cosine of the final-normed state with that of block L"),
            Column("jsd_previous", "FLOAT[]", "Jensen-Shannon divergence to the block before, nats"),
            Column("jsd_last", "FLOAT[]", "Jensen-Shannon divergence to block L, nats"),
            Column("monotone_from", "SMALLINT", "block from which p_final falls at no further block"),
            Column("first_similar", "SMALLINT", "first block with cosine_last of at least 0.9"),
            Column("similar_blocks", "SMALLINT", "how many of blocks 1..L-1 have a cosine_last of at least 0.9"),
            Column("grows_from", "SMALLINT", "block from which cosine_last grows with each of blocks 1..L-1"),
            Column("tolerance", "DOUBLE", "of nearly_monotone_from and nearly_grows_from"),
            Column(
                "nearly_monotone_from",
                "SMALLINT",
                "block from which p_final falls by no more than tolerance below any earlier block since",
            ),
            Column(
                "nearly_grows_from",
                "SMALLINT",
                "block from which cosine_last of blocks 1..L-1 falls by no more than tolerance below any earlier "
                "block since",
            ),
            _GIVEN_LOGPROB,
        ),
        file="probe",
        indexed=False,
    ),
    Table(
        "document_probe",
        "One row per attempt and document with probed tokens of full depth's answers. Every ingest makes it of "
        "probe_token.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "first_match",
                "SMALLINT[]",
                "by position; NULL where the positions of the document are not 1..n",
                required=False,
            ),
        ),
        indexed=False,
    ),
    Table(
        "score_token",
        "One row per attempt, document and probed token of a scores attempt; lists have one entry per block 1..L, "
        "as if the token had not left before.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _CHOICE,
            _TRACED_POSITION,
            Column("score", "FLOAT[]", "of the gate after each block, NaN where it is not asked and at block L"),
            Column("emitted_id", "INTEGER[]", "token that would be emitted there, -1 where the gate is not asked"),
            _GIVEN_LOGPROB,
        ),
        file="scores",
        indexed=False,
    ),
    Table(
        "sublayer_token",
        "One row per attempt, document, probed token, block and read-out of the inside of the block; lists have ten "
        "entries (fewer where the vocabulary is smaller), the most probable first.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _POSITION,
            Column("token_id", "INTEGER", "token that was generated"),
            Column("block", "SMALLINT", "1..L", key=True),
            Column(
                "read_out",
                "VARCHAR",
                "what the final norm and the LM head are applied to: self-attention, cross-attention "
                "(encoder-decoder only) or feed-forward: what that sub-layer alone adds to the residual stream; "
                "after-self-attention (encoder-decoder only): the stream once self-attention is added; "
                "after-attention: the stream once all attention of the block is added (self-attention, and "
                "cross-attention where there is one): what the feed-forward's output is added to; block: the stream "
                "after the block",
                key=True,
            ),
            Column("top_ids", "INTEGER[]", "the ten most probable tokens"),
            Column("top_p", "FLOAT[]", "their probabilities, falling"),
            Column("entropy", "FLOAT", "of the distribution over tokens, nats"),
        ),
        file="sublayers",
        indexed=False,
    ),
    Table(
        "layer_pair",
        "One row per attempt, document and ordered pair of blocks, both ways round and with itself.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("block_a", "SMALLINT", "1..L", key=True),
            Column("block_b", "SMALLINT", "1..L", key=True),
            Column(
                "cosine",
                "DOUBLE",
                "of the final-normed states after the two blocks, mean over the document's probed tokens",
            ),
            Column(
                "jsd",
                "DOUBLE",
                "Jensen-Shannon divergence of their read-outs, nats, 0 to ln 2, mean over the document's probed tokens",
            ),
            Column("n", "INTEGER", "tokens that the means are over"),
        ),
        file="layer_pairs",
        indexed=False,
    ),
)
