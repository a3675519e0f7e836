package kvcache

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/lukv/lukv/kernels"
)

// TestCheckNamesTheHead corrupts the last head of the last layer.
func TestCheckNamesTheHead(t *testing.T) {
	c := open(t, Options{Layers: 2, KVHeads: 3, HeadDim: 4, PageEntries: 16})
	add(t, c, 1, 2, 0, 40)
	pos := c.positions(&c.heads[5], 1)
	pos[0] = 3
	require.ErrorContains(t, c.Check(), "check layer 1 head 2 of a cache: position 3 of entry 16 is not above 15")
	pos[0] = 16
	require.NoError(t, c.Check())
}

// TestChangesAreChecked: with checks on, as in all tests, any change to a corrupt head
// panics.
func TestChangesAreChecked(t *testing.T) {
	for name, change := range map[string]func(c *Cache) error{
		"append":   func(c *Cache) error { return addErr(c, 0, 1, 40, 41) },
		"keep":     func(c *Cache) error { return c.Keep(0, 1, span(2, 40)) },
		"truncate": func(c *Cache) error { return c.Truncate(30) },
		"drop":     func(c *Cache) error { c.DropBefore(0, 9); return nil },
		"reserve":  func(c *Cache) error { return c.Reserve(0, 1, []int32{40}) },
	} {
		o := Options{Layers: 1, KVHeads: 2, HeadDim: 4, PageEntries: 16, Windows: []int{20}}
		if name == "reserve" {
			o.Device = newFake()
		}
		c, err := New(o)
		require.NoError(t, err)
		add(t, c, 0, 1, 0, 40)
		pos := c.positions(&c.heads[1], 0)
		pos[8] = 7
		require.Contains(t, panicOf(func() { _ = change(c) }), "kvcache: check layer 0 head 1", name)
		require.NoError(t, c.Close())
	}
}

// panicOf returns the value with which fn panics, nil if it does not.
func panicOf(fn func()) (with any) {
	defer func() { with = recover() }()
	fn()
	return nil
}

// TestClosedIsEmpty: windows leave nothing behind either.
func TestClosedIsEmpty(t *testing.T) {
	c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16, Windows: []int{8}})
	add(t, c, 0, 0, 0, 50)
	c.DropBefore(0, 40)
	require.Equal(t, 32, c.Base(0, 0))
	require.NoError(t, c.Close())
	require.Zero(t, c.Base(0, 0))
	require.EqualValues(t, -1, c.LastPosition(0, 0))
	require.Equal(t, Stats{PageBytes: c.Stats().PageBytes, HighWater: 4 * c.Stats().PageBytes}, c.Stats())
}

// TestRowsOfALostDevice: rows that the device did not deliver are zeros, whatever dst
// held before.
func TestRowsOfALostDevice(t *testing.T) {
	d := newFake()
	c := open(t, Options{Layers: 1, KVHeads: 1, HeadDim: 4, PageEntries: 16, Device: d})
	add(t, c, 0, 0, 0, 40)
	d.FailAt(1, kernels.ErrDeviceLost)
	dst := slices.Repeat([]float32{7}, 4*40)
	require.Equal(t, make([]float32, 4*40), c.Keys(0, 0, 0, 40, dst))
	require.ErrorIs(t, c.Err(), kernels.ErrDeviceLost)
}
