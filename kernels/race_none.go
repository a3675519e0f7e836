//go:build !race

package kernels

func raceRead[T any](s []T) {}

func raceWrite[T any]([]T) {}
