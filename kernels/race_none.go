//go:build !race

package kernels

const raceEnabled = false

func raceRead[T any](s []T) {}

func raceWrite[T any]([]T) {}
