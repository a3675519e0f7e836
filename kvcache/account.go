package kvcache

import (
	"fmt"
	"sync/atomic"
)

// Account counts the bytes that several caches and other users hold together
// and enforces a limit on them. Pages that forks share count once. It is safe
// for concurrent use.
type Account struct {
	limit int64
	used  atomic.Int64
}

// NewAccount returns an account with a limit in bytes.
func NewAccount(limit int64) *Account { return &Account{limit: limit} }

// Take adds n bytes, or returns an error that wraps ErrFull.
func (a *Account) Take(n int64) error {
	for {
		used := a.used.Load()
		if err := a.fits(used, n); err != nil {
			return err
		}
		if a.used.CompareAndSwap(used, used+n) {
			return nil
		}
	}
}

// Fits returns the error that Take would return now.
func (a *Account) Fits(n int64) error { return a.fits(a.used.Load(), n) }

func (a *Account) fits(used, n int64) error {
	if n > 0 && n > a.limit-used {
		return fmt.Errorf("%w: %d bytes are in use, %d more are needed, the limit for all is %d", ErrFull, used, n, a.limit)
	}
	return nil
}

// Give subtracts n bytes.
func (a *Account) Give(n int64) { a.used.Add(-n) }

// Used returns the bytes counted now.
func (a *Account) Used() int64 { return a.used.Load() }

// charge is Take for positive n and Give for negative n.
func (a *Account) charge(n int64) error {
	if n < 0 {
		a.Give(-n)
		return nil
	}
	return a.Take(n)
}
