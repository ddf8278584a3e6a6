"""Loss and perplexity of models on rows."""
