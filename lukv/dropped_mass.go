package lukv

// DroppedMass returns the importance of the entries that are not kept: what is lost with
// them. kept is ascending.
func DroppedMass(importance []float32, kept []int32) float64 {
	s := 0.0
	for t, v := range importance {
		if len(kept) > 0 && int(kept[0]) == t {
			kept = kept[1:]
			continue
		}
		s += float64(v)
	}
	return s
}
