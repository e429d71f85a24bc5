//! The checkers themselves, on histories written by hand: what they let pass, and what they notice.

mod story;
mod leases;
mod records;
