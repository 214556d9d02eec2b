//! Fuzzes `matrices`: see tests/fuzz/parsers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (parsers::target("matrices").check)(data));
