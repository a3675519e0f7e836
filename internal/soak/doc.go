// Package soak is a test that lets many goroutines use one model in every way at
// once: sessions with and without compression, forks, truncations, saved and
// loaded sessions, cancelled and abandoned calls, closing. Every bit of every
// result is compared with what one session alone gave. It exports nothing;
// scripts/soak runs it for a given time.
package soak
