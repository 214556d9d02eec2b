//! The messages of `libpmi-c/install`.

use std::process::Command;

use crate::libraries::repository;

#[test]
fn install_without_a_directory_prints_an_example() {
    let output = Command::new(repository().join("libpmi-c/install")).output().expect("the script cannot be started");
    let expected = "libpmi-c/install: error: expected one argument, the directory to install into\n  \
                    hint: ./libpmi-c/install /usr/local\n";
    assert_eq!((output.status.code(), &*String::from_utf8_lossy(&output.stderr)), (Some(1), expected));
}
