"""The word-level tokenizer of the built-in data: a token is a word, a punctuation mark or an end of line."""

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from exitbench.tasks.builtin import dialogues, questions, translation

PAD, EOS, UNK = "<pad>", "</s>", "<unk>"
# What the tasks' prompts add to the documents' own text.
PROMPT_WORDS = frozenset({"question", "context", "summarize", "translate", "English", "to", "French", ":"})
END_OF_LINE = "\n"


def vocabulary() -> list[str]:
    """Return all words, sorted; a word's token id is its position plus 3, after <pad>, </s> and <unk>."""
    words = translation.words() | questions.words() | dialogues.words() | PROMPT_WORDS | {END_OF_LINE}
    return sorted(words)


def build_tokenizer() -> Tokenizer:
    """Make the tokenizer: ids 0 <pad>, 1 </s>, 2 <unk>; every encoding ends with </s>.

    Decoding an encoding gives the text back, for any text of the built-in data.
    """
    ids = {word: i for i, word in enumerate((PAD, EOS, UNK, *vocabulary()))}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token=UNK))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(" ", "removed"),
            pre_tokenizers.Split(END_OF_LINE, "isolated"),
            pre_tokenizers.Punctuation("isolated"),
        ]
    )
    # The decoder of WordPiece joins by spaces all that does not begin with its prefix, and here nothing does.
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.WordPiece(prefix="##", cleanup=False),
            decoders.Fuse(),
            decoders.Replace(f" {END_OF_LINE} ", END_OF_LINE),
        ]
    )
    tokenizer.add_special_tokens([PAD, EOS, UNK])
    tokenizer.post_processor = processors.TemplateProcessing(single=f"$A {EOS}", special_tokens=[(EOS, ids[EOS])])
    return tokenizer
