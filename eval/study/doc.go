// Package study makes the data of figures about what compression loses and costs:
// oracle importance kept and lost by metric, layer and head, a comparison of the
// solvers, local ratios against the global one ([Losses]); how far profiles agree
// ([Agreement]); memory and time to the first token ([Cost]); needles at every
// depth ([Needles]); scores against ratios ([Sensitivity]). A [File] keeps the
// data of figures, so that they can be drawn again.
package study
