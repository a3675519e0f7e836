// Package scoring compares predictions with reference answers by the rules of the
// benchmarks that they belong to: RULER, LongBench and InfiniteBench, each in its own
// script's dialect and in kvpress's. It reads and runs nothing.
package scoring
