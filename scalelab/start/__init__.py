"""The model that a run starts from: made, fine-tuned, downloaded, or taken from a folder."""
