// Assignments sorted by expert, in one list of words: the first tile of every expert and the
// number of all, the first assignment of every expert and the number of all, and the
// assignments. Assignment a is place a%chosen of row a/chosen.

uint startsAt(uint experts) { return experts + 1; }
uint orderAt(uint experts) { return 2 * experts + 2; }

// expertOf returns the expert of an assignment, which numbers in ids cannot lead beyond the stack.
uint expertOf(InF ids, uint a, uint chosen, uint ldi, uint experts) {
	return min(uint(max(ids.v[a / chosen * ldi + a % chosen], 0.0)), experts - 1);
}

// expertOfTile returns the expert of a tile, experts beyond the last one.
uint expertOfTile(InU list, uint tile, uint experts) {
	if (tile >= list.v[experts]) return experts;
	uint lo = 0, hi = experts;
	while (lo + 1 < hi) {
		uint mid = (lo + hi) / 2;
		if (list.v[mid] <= tile) lo = mid;
		else hi = mid;
	}
	return lo;
}
