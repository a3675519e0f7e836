package lukv

// Protection names the entries that are always kept if the budget allows: the
// first Sinks and the last Window slots of a head. It ranks above every real
// score. The zero value protects nothing.
//
// If the budget is smaller than the protected set, the lowest slots win; with
// Recent the sinks win first, then the newest slots, backwards.
type Protection struct {
	Sinks  int  `json:"sinks"`
	Window int  `json:"window"`
	Recent bool `json:"recent,omitempty"`
}

// Split clips the protection to a head of T slots: slots [0,lo) and [hi,T) are
// protected, 0 <= lo <= hi <= T.
func (p Protection) Split(T int) (lo, hi int) {
	lo = min(max(p.Sinks, 0), T)
	hi = max(lo, T-max(p.Window, 0))
	return lo, hi
}

// Count returns how many slots of a head of T slots are protected.
func (p Protection) Count(T int) int {
	lo, hi := p.Split(T)
	return lo + T - hi
}

// Has reports whether slot t of a head of T slots is protected.
func (p Protection) Has(t, T int) bool {
	lo, hi := p.Split(T)
	return t < lo || t >= hi
}

// Union protects what p or q protects.
func (p Protection) Union(q Protection) Protection {
	return Protection{max(p.Sinks, q.Sinks), max(p.Window, q.Window), p.Recent || q.Recent}
}
