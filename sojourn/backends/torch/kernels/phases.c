/* Phases of a step, into whose tasks all threads divide the work. */

#include <sched.h>

#define SPINS 4000 /* how often a waiting thread checks a phase before it yields its core */

/* Returns the number of the phase's next task, or -1 if all are taken. */
static inline int64_t take(struct Phase *phase, int64_t count)
{
    int64_t task = __atomic_fetch_add(&phase->taken, 1, __ATOMIC_RELAXED);
    return task < count ? task : -1;
}

static inline void finish(struct Phase *phase) { __atomic_fetch_add(&phase->done, 1, __ATOMIC_RELEASE); }

/* Waits until the phase's tasks are done. It waits for tasks, not for threads: where a thread comes late, the others
   have done its share. */
static void wait_for(struct Phase *phase, int64_t count)
{
    for (int spins = 0; __atomic_load_n(&phase->done, __ATOMIC_ACQUIRE) < count; spins++)
        if (spins > SPINS)
            sched_yield();
}

/* One task of a product: a block of rows, and the panels from `panel` to `stop`. */
struct ProductTask {
    int64_t row, rows, panel, stop;
};

/* The tasks into which threads divide a product: the rows form `blocks` blocks, and each block is computed in `spans`
   tasks of at most `size` panels; there are `count` tasks in all. */
struct ProductPlan {
    int64_t rows, blocks, panels, size, spans, count;
};

static struct ProductPlan plan_product(int64_t rows, int64_t outputs, int64_t threads)
{
    int64_t blocks = ceil_div(rows, ROW_BLOCK), panels = ceil_div(outputs, PANEL);
    int64_t size = min64(PANELS_PER_TASK, 1 + panels * blocks / (4 * threads)), spans = ceil_div(panels, size);
    return (struct ProductPlan){rows, blocks, panels, size, spans, blocks * spans};
}

/* Takes the phase's next task. Returns 0 if all are taken. */
static inline int next_task(struct Phase *phase, const struct ProductPlan *plan, struct ProductTask *task)
{
    int64_t number = take(phase, plan->count);
    if (number < 0)
        return 0;
    int64_t block = number / plan->spans;
    task->row = block * plan->rows / plan->blocks;
    task->rows = (block + 1) * plan->rows / plan->blocks - task->row;
    task->panel = number % plan->spans * plan->size;
    task->stop = min64(task->panel + plan->size, plan->panels);
    return 1;
}
