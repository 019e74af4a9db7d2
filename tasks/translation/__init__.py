"""Translation of sentences, in any pair of languages and either direction."""
