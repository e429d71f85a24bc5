//! Whole fleets in virtual time, with faults, and the checkers that judge them.
