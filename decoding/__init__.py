"""Token ids in, token ids out: the model, the packed step, sampling, verification. No text, no HTTP."""
