"""The block-refinement engine: requests in, a stream of text events out."""
