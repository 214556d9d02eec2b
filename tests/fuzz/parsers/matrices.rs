//! Communication matrices in all formats.

use placement::limits::{MATRIX_PAIRS_MAX, MATRIX_RANKS_MAX};
use placement::matrix::Matrix;

/// A matrix that is read is within its bounds, and the same when written and read again.
pub(super) fn check(data: &[u8]) {
    let matrix = match Matrix::read_any(data) {
        Ok(matrix) => matrix,
        Err(error) => return super::check_shown(&error.to_string()),
    };
    assert!(matrix.ranks() <= MATRIX_RANKS_MAX && matrix.pairs().len() <= MATRIX_PAIRS_MAX);
    assert!(matrix.pairs().is_sorted_by_key(|pair| (pair.from, pair.to)));
    assert!(matrix.pairs().iter().all(|pair| pair.from.max(pair.to) < matrix.ranks() && !pair.traffic.is_zero()));
    let mut file = Vec::new();
    matrix.write(&mut file).expect("memory takes all bytes");
    assert_eq!(Matrix::read(&file[..]).expect("our own format"), matrix);
}
