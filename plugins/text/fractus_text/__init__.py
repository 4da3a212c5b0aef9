"""The front-end `text`: tokens in, tokens out."""
