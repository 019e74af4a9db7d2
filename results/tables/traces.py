"""Tables with one row per token, without an index: they are scanned, and an index would halve the speed of ingest."""

from typing import Final

from exitbench.results.tables.declared import ATTEMPT_ID, DOC_KEY, Column, Table

_CHOICE: Final = Column(
    "choice",
    "INTEGER",
    "number of the given text, 1 = first of the task's list (after a document's choices come its other requests, "
    "such as choices without their context); NULL for tokens of answers",
    key=True,
    required=False,
)
_POSITION: Final = Column("position", "INTEGER", "position of the token in the answer, 1 = first generated", key=True)
_TRACED_POSITION: Final = Column(
    "position",
    "INTEGER",
    "position of the token in the answer, or in the given text after its context, from 1",
    key=True,
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
        "One row per attempt, document and token that was generated or, in a given text, scored: its exit layer and "
        "score.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _CHOICE,
            _TRACED_POSITION,
            Column(
                "token_id",
                "INTEGER",
                "token that was generated or given, NULL if an export omitted the given ones",
                redacted_sql=_GIVEN_TOKEN_LEFT_OUT,
            ),
            _TOKEN_KIND,
            Column("exit_layer", "SMALLINT", "exit layer: block after which the token was emitted or scored"),
            Column(
                "blocks_run",
                "SMALLINT",
                "blocks executed for the token (in a replay, which runs none: those up to its exit, or all if the "
                "KV policy or oracle runs all)",
            ),
            Column("score", "FLOAT", "confidence of the gate at the exit", required=False),
            Column("reason", "VARCHAR", "reason of the exit: threshold (the gate opened) or last (no block was left)"),
            Column(
                "head_rows",
                "INTEGER",
                "rows of the LM head multiplied for the token, NULL for a replay",
                required=False,
            ),
            Column(
                "rejected",
                "INTEGER",
                "drafted tokens rejected right before this one, which the full model chose in their place; NULL "
                "without verification",
                required=False,
            ),
            Column(
                "full_token_id",
                "INTEGER",
                "token of full depth's answer at this position, NULL after its end and for given texts",
                required=False,
            ),
            Column(
                "score_half_width",
                "FLOAT",
                "maximal error of score if bounds of the logits decided, NULL if score is exact",
                required=False,
            ),
            Column(
                "head_rows_int8",
                "INTEGER",
                "rows of an int8 copy of the LM head multiplied for the token, NULL if heads are read exactly",
                required=False,
            ),
            Column(
                "head_fallbacks",
                "INTEGER",
                "number of reads of the whole LM head for the token because bounds did not decide, NULL if heads "
                "are read exactly",
                required=False,
            ),
            Column(
                "logprob",
                "FLOAT",
                "natural logarithm of the given token's probability at the exit, NULL for tokens of answers",
                required=False,
            ),
            Column(
                "full_logprob", "FLOAT", "the same at full depth, NULL if full depth was not scored", required=False
            ),
            Column(
                "is_greedy",
                "BOOLEAN",
                "the given token is the most probable at the exit, NULL for tokens of answers",
                required=False,
            ),
            Column(
                "full_is_greedy", "BOOLEAN", "the same at full depth, NULL if full depth was not scored", required=False
            ),
        ),
        file="tokens",
        indexed=False,
    ),
    Table(
        "document_exit",
        "One row per attempt and document with generated tokens. Every ingest derives it from token_exit, so that "
        "queries on whole documents need not scan all tokens.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("is_known", "BOOLEAN", "the trace contains full depth's tokens"),
            Column("first_divergence", "INTEGER", "first position of a token that is not full depth's", required=False),
            Column("divergence_score", "FLOAT", "score of the gate there", required=False),
            Column(
                "exit_layer",
                "SMALLINT[]",
                "exit layers by position; NULL if the positions of the document are not 1..n",
                required=False,
            ),
            Column(
                "is_equal",
                "BOOLEAN[]",
                "whether the token is full depth's, by position; NULL in the same case",
                required=False,
            ),
        ),
        indexed=False,
    ),
    Table(
        "token_time",
        "One row per token, round and arm of an untraced decode; the clock is read after each token.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "round",
                "INTEGER",
                "number of the round, from 0; even rounds begin with full depth, odd ones with the method",
                key=True,
            ),
            Column("arm", "VARCHAR", "method, or full (full depth)", key=True),
            _POSITION,
            Column("token_id", "INTEGER", "token that was generated, from an earlier traced decode"),
            Column("exit_layer", "SMALLINT", "exit layer of the token, from the same decode; L for full depth"),
            Column("wall_ns", "BIGINT", "time since the previous token, or since the decode began"),
        ),
        file="token_times",
        indexed=False,
    ),
    Table(
        "prompt_token",
        "One row per attempt, document and token of a prompt as input to the model, from probes with the record "
        "prompt-ids.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "position",
                "INTEGER",
                "position of the token in the prompt, from 1; of a truncated prompt, only the kept tokens are listed",
                key=True,
            ),
            Column("token_id", "INTEGER", "token of the input, NULL if an export omitted it", redacted_sql="NULL"),
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
                "token of full depth, or of the given text, NULL if an export omitted given ones",
                redacted_sql=_GIVEN_TOKEN_LEFT_OUT,
            ),
            Column("full_token_id", "INTEGER", "most probable token after block L"),
            Column(
                "gold_token_id",
                "INTEGER",
                "token of the reference at this position, NULL after its end",
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
            Column("entropy", "FLOAT[]", "entropy of the distribution over tokens, nats"),
            Column("logsumexp", "FLOAT[]", "log-sum-exp of the logits"),
            Column(
                "cosine_previous",
                "FLOAT[]",
                "cosine similarity of the state to that of the previous block (the embedding, for block 1)",
            ),
            Column("cosine_previous_normed", "FLOAT[]", "the same for states after the final norm"),
            Column(
                "cosine_last", "FLOAT[]", "cosine similarity of the state to that of block L, both after the final norm"
            ),
            Column("jsd_previous", "FLOAT[]", "Jensen-Shannon divergence from the previous block, nats"),
            Column("jsd_last", "FLOAT[]", "Jensen-Shannon divergence from block L, nats"),
            Column("monotone_from", "SMALLINT", "first block after which p_final never falls"),
            Column("first_similar", "SMALLINT", "first block with cosine_last of at least 0.9"),
            Column("similar_blocks", "SMALLINT", "number of blocks 1..L-1 with a cosine_last of at least 0.9"),
            Column("grows_from", "SMALLINT", "first block after which cosine_last grows at each of blocks 1..L-1"),
            Column("tolerance", "DOUBLE", "tolerance of nearly_monotone_from and nearly_grows_from"),
            Column(
                "nearly_monotone_from",
                "SMALLINT",
                "first block after which p_final is never more than tolerance below an earlier value",
            ),
            Column(
                "nearly_grows_from",
                "SMALLINT",
                "first block after which cosine_last of blocks 1..L-1 is never more than tolerance below an earlier "
                "value",
            ),
            _GIVEN_LOGPROB,
        ),
        file="probe",
        indexed=False,
    ),
    Table(
        "document_probe",
        "One row per attempt and document with probed tokens of full depth's answers. Every ingest derives it from "
        "probe_token.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column(
                "first_match",
                "SMALLINT[]",
                "list by position; NULL if the positions of the document are not 1..n",
                required=False,
            ),
        ),
        indexed=False,
    ),
    Table(
        "score_token",
        "One row per attempt, document and probed token of a scores attempt; lists have one entry per block 1..L, "
        "as if the token had not exited before.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _CHOICE,
            _TRACED_POSITION,
            Column(
                "score",
                "FLOAT[]",
                "score of the gate after each block, NaN if it is not evaluated there and at block L",
            ),
            Column(
                "emitted_id", "INTEGER[]", "token that would be emitted there, -1 if the gate is not evaluated there"
            ),
            _GIVEN_LOGPROB,
        ),
        file="scores",
        indexed=False,
    ),
    Table(
        "sublayer_token",
        "One row per attempt, document, probed token, block and read-out inside the block; lists have ten entries "
        "(fewer if the vocabulary is smaller), the most probable first.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            _POSITION,
            Column("token_id", "INTEGER", "token that was generated"),
            Column("block", "SMALLINT", "number of the block, 1..L", key=True),
            Column(
                "read_out",
                "VARCHAR",
                "input of the final norm and the LM head. self-attention, cross-attention (encoder-decoder only), "
                "feed-forward: the output that this sub-layer adds to the residual stream. after-self-attention "
                "(encoder-decoder only): the stream after self-attention. after-attention: the stream after all "
                "attention of the block, to which the feed-forward's output is added. block: the stream after the "
                "block",
                key=True,
            ),
            Column("top_ids", "INTEGER[]", "the ten most probable tokens"),
            Column("top_p", "FLOAT[]", "their probabilities, in descending order"),
            Column("entropy", "FLOAT", "entropy of the distribution over tokens, nats"),
        ),
        file="sublayers",
        indexed=False,
    ),
    Table(
        "layer_pair",
        "One row per attempt, document and ordered pair of blocks, including each block with itself.",
        (
            ATTEMPT_ID,
            DOC_KEY,
            Column("block_a", "SMALLINT", "number of the block, 1..L", key=True),
            Column("block_b", "SMALLINT", "number of the block, 1..L", key=True),
            Column(
                "cosine",
                "DOUBLE",
                "cosine similarity of the states after the two blocks, both after the final norm, mean over the "
                "document's probed tokens",
            ),
            Column(
                "jsd",
                "DOUBLE",
                "Jensen-Shannon divergence between their read-outs, nats, 0 to ln 2, mean over the document's "
                "probed tokens",
            ),
            Column("n", "INTEGER", "number of tokens that the means are over"),
        ),
        file="layer_pairs",
        indexed=False,
    ),
)
