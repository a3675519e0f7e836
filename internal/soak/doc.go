// Package soak is a test in which many goroutines use one model in every way at
// once: sessions with and without compression, forks, truncations, saved and
// loaded sessions, cancelled and abandoned calls, closing. Every result must be
// identical, bit for bit, to that of a session on its own. Another test kills, at
// random moments, a program that writes files of every kind. The package exports
// nothing; scripts/soak runs the first test for a given time, scripts/crash the
// second.
package soak
