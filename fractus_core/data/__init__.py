"""What front-ends need that read data: the cache, the Hugging Face Hub, a progress bar."""
