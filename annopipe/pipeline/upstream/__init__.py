"""Schedule objects of torch.distributed.pipelining: ``ap.attach``."""
