//! Shares ranks among nodes.

/// Fills nodes in order, up to their slots.
pub(super) fn fill(size: u32, slots: &[u32]) -> Vec<u32> {
    let mut left = size;
    let one = |slots: &u32| {
        let ranks = left.min(*slots);
        left -= ranks;
        ranks
    };
    slots.iter().map(one).collect()
}

/// Shares `size` in proportion to the weights, none of which is zero, and up to each node's maximum: the other
/// nodes get the rest. Shares are whole numbers; the first nodes get the remainder. All of `size` is shared if it
/// fits.
pub(super) fn shares(size: u32, weighted: impl Iterator<Item = (u32, u32)>) -> Vec<u32> {
    let weighted: Vec<(u64, u64)> = weighted.map(|(weight, most)| (u64::from(weight), u64::from(most))).collect();
    let mut left = u64::from(size);
    let mut weights: u64 = weighted.iter().map(|(weight, _)| weight).sum();
    // The node with the least maximum for its weight fills first. If it does not fill, no later node does.
    let mut order: Vec<usize> = (0..weighted.len()).collect();
    order.sort_by(|&a, &b| {
        let ((weight_a, most_a), (weight_b, most_b)) = (weighted[a], weighted[b]);
        (most_a * weight_b).cmp(&(most_b * weight_a))
    });
    let mut is_full = vec![false; weighted.len()];
    for at in order {
        let (weight, most) = weighted[at];
        if u128::from(most) * u128::from(weights) > u128::from(left) * u128::from(weight) {
            break;
        }
        is_full[at] = true;
        left -= most;
        weights -= weight;
    }
    let floor = |weight: u64| (u128::from(left) * u128::from(weight) / u128::from(weights.max(1))) as u64;
    let open = || weighted.iter().zip(&is_full).filter(|(_, is_full)| !**is_full);
    let mut over = left.saturating_sub(open().map(|((weight, _), _)| floor(*weight)).sum());
    let share = |(&(weight, most), &is_full): (&(u64, u64), &bool)| {
        if is_full {
            return most as u32;
        }
        let extra = over.min(1);
        over -= extra;
        (floor(weight) + extra) as u32
    };
    weighted.iter().zip(&is_full).map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(size: u32, weighted: &[(u32, u32)], expected: &[u32]) {
        assert_eq!(shares(size, weighted.iter().copied()), expected);
    }

    const ANY: u32 = u32::MAX;

    #[test]
    fn shares_are_even_and_the_first_nodes_get_the_remainder() {
        check(8, &[(1, ANY); 4], &[2, 2, 2, 2]);
        check(10, &[(1, ANY); 4], &[3, 3, 2, 2]);
        check(3, &[(1, ANY); 4], &[1, 1, 1, 0]);
        check(12, &[(4, ANY), (8, ANY)], &[4, 8]);
        check(25, &[(4, ANY), (8, ANY)], &[9, 16]);
        check(0, &[(1, ANY)], &[0]);
        check(0, &[], &[]);
    }

    #[test]
    fn full_nodes_leave_the_rest_to_others() {
        check(10, &[(1, 2), (1, ANY), (1, ANY)], &[2, 4, 4]);
        check(10, &[(1, ANY), (1, 1), (1, 2)], &[7, 1, 2]);
        check(6, &[(1, 1), (1, 2), (1, 3)], &[1, 2, 3]);
        check(5, &[(4, 4), (1, 1)], &[4, 1]);
        check(u32::MAX, &[(1, ANY); 2], &[1 << 31, (1 << 31) - 1]);
    }

    #[test]
    fn slots_are_filled_in_order() {
        assert_eq!(fill(5, &[2, 2, 2]), [2, 2, 1]);
        assert_eq!(fill(1, &[2, 2]), [1, 0]);
    }
}
