// Package soak is a test that lets many goroutines use one model in every way at
// once: sessions with and without compression, forks, truncations, saved and
// loaded sessions, cancelled and abandoned calls, closing. Every bit of every
// result is compared with what one session alone gave. Another test kills a program
// that writes files of every kind, at random moments. It exports nothing; scripts/soak
// runs the first for a given time, scripts/crash the second.
package soak
