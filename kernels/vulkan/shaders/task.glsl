// A work list: a header of 16 words and the tasks. The host writes it, the
// counts of workgroups included; commands that were recorded before follow it.
struct Task {
	uint head;   // index into the heads
	uint row;    // first token
	uint shape;  // tokens | query heads << 8 | first query head of the group << 16
	uint end;    // logical slots that the first token sees; token i sees i more
	uint first;  // first block of 256 slots
	uint blocks; // number of blocks
	uint items;  // blocks of all tasks before
	uint unused;
};
layout(buffer_reference, std430, buffer_reference_align = 16) readonly buffer Tasks {
	uint groups[3];  // workgroups of attention for tasks of any size: of items if it is split, of tasks if not
	uint count;      // tasks
	uint combine[3]; // workgroups of combine.comp, none if attention is not split
	uint total;      // items of all tasks, 0 if attention is not split
	uvec2 partials;  // where items leave their results
	uint few[3];     // workgroups of attention if all tasks have few rows, in place of the others
	uint unused[3];
	Task v[];
};

// findTask returns the task that an item belongs to.
uint findTask(Tasks list, uint n, uint item) {
	uint lo = 0, hi = n;
	while (lo + 1 < hi) {
		uint mid = (lo + hi) / 2;
		if (list.v[mid].items <= item) lo = mid;
		else hi = mid;
	}
	return lo;
}

// firstSlot is the first slot that a token sees which sees the slots below hi.
uint firstSlot(uint hi, uint window) { return window > 0 && hi > window ? hi - window : 0; }
