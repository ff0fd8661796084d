"""What a pipeline's runtime itself costs per action: ours beside the eager runtime of torch.distributed.pipelining."""
