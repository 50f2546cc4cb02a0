/* Low-rank adapters, which are added to the products of some rows: y += x down up. The rows of one adapter lie side by
   side. A row's sums add their terms in the same order whichever rows and adapters are beside it. */

#include "phases.c"

/* What adapters add to one product of one layer: `index` counts the products of all layers. `low` has a row of
   `low_width` numbers for each row of the product, for x down. */
struct Additions {
    const struct AdaptedRows *rows;
    int64_t count, index, low_width;
    real *low;
};

/* Computes low = x down for `rows` rows (a constant, once inlined) and LANES numbers of low, whose weights lie side by
   side for each input. Each number is the sum of two, of every other term: one sum would wait for itself. */
static inline __attribute__((always_inline)) void down_tile(int rows, const real *x, int64_t depth, const real *down,
                                                            real *low, int64_t low_width)
{
    vec sum[TILE_ROWS][2];
    int64_t d = 0;
    for (int r = 0; r < rows; r++)
        sum[r][0] = sum[r][1] = (vec){0};
    for (; d + PAIR < depth; d += 2 * PAIR) {
        terms even = *(const terms *)(down + d * LANES), odd = *(const terms *)(down + (d + PAIR) * LANES);
        for (int r = 0; r < rows; r++) {
            term two[2];
            memcpy(two, x + r * depth + d, sizeof two);
            sum[r][0] = add_product(sum[r][0], two[0], even);
            sum[r][1] = add_product(sum[r][1], two[1], odd);
        }
    }
    for (int r = 0; r < rows; r++) {
        term last;
        if (d < depth) {
            memcpy(&last, x + r * depth + d, sizeof last);
            sum[r][0] = add_product(sum[r][0], last, *(const terms *)(down + d * LANES));
        }
        store_vec(sum[r][0] + sum[r][1], low + r * low_width);
    }
}

/* Calls `down_tile` for a number of rows that is not a constant. As with `tile_products`, the compiler may not clone
   it. */
#if defined __GNUC__ && !defined __clang__
__attribute__((noclone))
#endif
__attribute__((noinline)) static void down_tiles(int rows, const real *x, int64_t depth, const real *down, real *low,
                                                 int64_t low_width)
{
#define DOWN(n)                                                                                                        \
    case n:                                                                                                            \
        down_tile(n, x, depth, down, low, low_width);                                                                  \
        break;
    switch (rows) {
        DOWN(1) DOWN(2) DOWN(3) DOWN(4) DOWN(5) DOWN(6)
#if TILE_ROWS > 6
        DOWN(7) DOWN(8) DOWN(9) DOWN(10) DOWN(11) DOWN(12)
#endif
    }
}

/* Computes low = x down for the rows that are adapted. */
static void down_products(struct Phase *phase, const struct Additions *additions, const real *x, int64_t depth)
{
    int64_t task, width = additions->low_width, blocks = width / LANES, count = additions->count * blocks;
    while (count && (task = take(phase, count)) >= 0) {
        const struct AdaptedRows *rows = additions->rows + task / blocks;
        const struct AdaptedProduct *product = rows->products + additions->index;
        int64_t column = task % blocks * LANES, groups = ceil_div(rows->count, TILE_ROWS);
        for (int64_t g = 0; column < product->width && g < groups; g++) {
            int64_t r = rows->first + g * rows->count / groups, end = rows->first + (g + 1) * rows->count / groups;
            down_tiles((int)(end - r), x + r * depth, depth, product->down + column * depth,
                       additions->low + r * width + column, width);
        }
        finish(phase);
    }
    wait_for(phase, count);
}

/* Adds low up to `count` outputs of a panel of y, for at most TILE_ROWS rows. */
static void up_tile(const real *low, int64_t low_width, int64_t rows, int64_t rank, const real *up, float *y,
                    int64_t y_stride, int64_t count)
{
    float part[TILE_ROWS * PANEL];
    if (count >= PANEL) {
        tile_products((int)rows, low, low_width, 1, up, PANEL, rank, y, y_stride, 1, 0, 0);
        return;
    }
    memset(part, 0, sizeof part);
    for (int64_t r = 0; r < rows; r++)
        memcpy(part + r * PANEL, y + r * y_stride, count * sizeof(float));
    tile_products((int)rows, low, low_width, 1, up, PANEL, rank, part, PANEL, 1, 0, 0);
    for (int64_t r = 0; r < rows; r++)
        memcpy(y + r * y_stride, part + r * PANEL, count * sizeof(float));
}

/* Adds low up to panel `p` of y (rows, outputs) for the rows from `first` to `stop`. */
static void up_panel(const struct Additions *additions, const struct AdaptedWeight *weight, int64_t first, int64_t stop,
                     float *y, int64_t outputs, int64_t p)
{
    const real *up = weight->up + (p - weight->first_panel) * weight->up_stride;
    int64_t groups = ceil_div(stop - first, TILE_ROWS), width = additions->low_width;
    for (int64_t g = 0; g < groups; g++) {
        int64_t r = first + g * (stop - first) / groups, end = first + (g + 1) * (stop - first) / groups;
        up_tile(additions->low + r * width + weight->column, width, end - r, weight->rank, up,
                y + r * outputs + p * PANEL, outputs, outputs - p * PANEL);
    }
}

/* Adds what adapters make of weight number `weight` of a product to a task's part of y (rows, outputs): panel by panel,
   as the adapters' numbers for a panel lie side by side. */
static void up_products(const struct Additions *additions, int weight, const struct ProductTask *task, float *y,
                        int64_t outputs)
{
    for (int64_t p = task->panel; additions->count && p < task->stop; p++)
        for (int64_t n = 0; n < additions->count; n++) {
            const struct AdaptedRows *rows = additions->rows + n;
            const struct AdaptedWeight *adapted = rows->products[additions->index].weights + weight;
            int64_t first = max64(rows->first, task->row);
            int64_t stop = min64(rows->first + rows->count, task->row + task->rows);
            if (first < stop && adapted->first_panel <= p && p < adapted->stop_panel)
                up_panel(additions, adapted, first, stop, y, outputs, p);
        }
}
