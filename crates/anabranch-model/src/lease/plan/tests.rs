mod native;
mod fleets;
mod weights;
