//! The gosset command.
fn main() {}
