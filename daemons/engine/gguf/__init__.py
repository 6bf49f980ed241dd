"""Models as GGUF files: their header, and what it says in Hugging Face's words."""
