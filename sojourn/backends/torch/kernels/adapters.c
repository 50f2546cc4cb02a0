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

/* Computes low = x down for the rows that are adapted. */
static void down_products(struct Phase *phase, const struct Additions *additions, const real *x, int64_t depth)
{
    int64_t task, panels = additions->low_width / PANEL, count = additions->count * panels;
    while (count && (task = take(phase, count)) >= 0) {
        const struct AdaptedRows *rows = additions->rows + task / panels;
        const struct AdaptedProduct *product = rows->products + additions->index;
        int64_t column = task % panels * PANEL;
        if (column < product->width) {
            float part[ADAPTED_ROWS * PANEL];
            vector_product(x + rows->first * depth, 0, rows->count, depth, product->down + column * depth, part, PANEL,
                           0, 0);
            for (int64_t r = 0; r < rows->count; r++)
                for (int64_t h = 0; h < PANEL; h += LANES)
                    store_vec(*(const vec *)(part + r * PANEL + h),
                              additions->low + (rows->first + r) * additions->low_width + column + h);
        }
        finish(phase);
    }
    wait_for(phase, count);
}

/* Adds low up to `count` outputs of a panel of y, for at most TILE_ROWS rows. */
static void add_up_tile(const real *low, int64_t low_width, int64_t rows, int64_t rank, const real *up, float *y,
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

/* Adds what adapters make of one of the weights of a product to a task's part of y (rows, outputs). */
static void add_up_products(const struct Additions *additions, int weight, const struct ProductTask *task, float *y,
                  int64_t outputs)
{
    for (int64_t n = 0; n < additions->count; n++) {
        const struct AdaptedRows *rows = additions->rows + n;
        const struct AdaptedWeight *adapted = rows->products[additions->index].weights + weight;
        int64_t first = max64(rows->first, task->row), stop = min64(rows->first + rows->count, task->row + task->rows);
        int64_t last = min64(adapted->stop_panel, task->stop), groups = ceil_div(stop - first, TILE_ROWS);
        for (int64_t p = max64(adapted->first_panel, task->panel); first < stop && p < last; p++)
            for (int64_t g = 0; g < groups; g++) {
                int64_t r = first + g * (stop - first) / groups, end = first + (g + 1) * (stop - first) / groups;
                add_up_tile(additions->low + r * additions->low_width + adapted->column, additions->low_width, end - r,
                           adapted->rank, adapted->up + (p - adapted->first_panel) * adapted->rank * PANEL,
                           y + r * outputs + p * PANEL, outputs, outputs - p * PANEL);
            }
    }
}
