//! Fuzzes `fault_histories`: see tests/fuzz/parsers.
#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| (parsers::target("fault_histories").check)(data));
