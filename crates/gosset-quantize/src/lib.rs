//! From a checkpoint to a Gosset container: sources, tensor policy, rate targets, pipeline.
