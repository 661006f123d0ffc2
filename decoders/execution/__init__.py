"""How a decoding step is executed: eagerly, compiled, or as a captured CUDA graph. Same step, same
codes; a loop knows nothing of it but `decoders.api.Execution`."""
