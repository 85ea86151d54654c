//! Matrix to bitstream and back: randomized Hadamard transform, lattice, entropy code, rate targeting.
#![forbid(unsafe_code)]
