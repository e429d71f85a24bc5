//! Tests of the checkers themselves, on histories written by hand: those they accept and reject.

mod story;
mod leases;
mod records;
