/* Batch normalization of channels-last maps of float32; see batch_norm.py for what it is for.

   A map is a matrix of pixels times channels, a row a pixel. Sums over rows are taken in double precision, block by
   block, and the blocks' sums one after the other: blocks are as the shape says, so that no bit depends on the number of
   threads.

   No function allocates, and none looks at Python: calls may let go of its lock. */

#include <stddef.h>
#include <stdint.h>

/* The loops over channels are compiled for wider registers too, and chosen as the library is loaded. All of them add
   the same numbers in the same order (and setup.py forbids fused products), so that processors agree to the bit. */
#if defined(__x86_64__) && defined(__gnu_linux__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef struct {
    int64_t rows, channels, blocks;
} Shape;

static int64_t first_row(Shape shape, int64_t block) { return shape.rows * block / shape.blocks; }

/* --- sums of a block ---------------------------------------------------------------------------------------------- */

/* Of what a map has above an origin, and of the squares of that. */
FOR_EACH_PROCESSOR
static void add_squares(const float *restrict x, const float *restrict origin, int64_t rows, int64_t channels,
                        double *restrict sums, double *restrict squares) {
    for (int64_t row = 0; row < rows; row++, x += channels)
        for (int64_t c = 0; c < channels; c++) {
            double above = (double)x[c] - (double)origin[c];
            sums[c] += above;
            squares[c] += above * above;
        }
}

/* Of a gradient, and of its products with what a map has above its mean. */
FOR_EACH_PROCESSOR
static void add_products(const float *restrict gy, const float *restrict x, const float *restrict mean, int64_t rows,
                         int64_t channels, double *restrict sums, double *restrict products) {
    for (int64_t row = 0; row < rows; row++, gy += channels, x += channels)
        for (int64_t c = 0; c < channels; c++) {
            double gradient = gy[c];
            sums[c] += gradient;
            products[c] += gradient * ((double)x[c] - (double)mean[c]);
        }
}

/* Adds the sums of all blocks to those of the first, in order. */
static void add_up(Shape shape, double *sums) {
    for (int64_t block = 1; block < shape.blocks; block++)
        for (int64_t c = 0; c < 2 * shape.channels; c++)
            sums[c] += sums[block * 2 * shape.channels + c];
}

/* --- rows --------------------------------------------------------------------------------------------------------- */

FOR_EACH_PROCESSOR
static void normalize_rows(const float *restrict x, const float *restrict mean, const float *restrict slope,
                           const float *restrict shift, int64_t rows, int64_t channels, float *restrict y) {
    for (int64_t row = 0; row < rows; row++, x += channels, y += channels)
        for (int64_t c = 0; c < channels; c++)
            y[c] = (x[c] - mean[c]) * slope[c] + shift[c];
}

FOR_EACH_PROCESSOR
static void differentiate_rows(const float *restrict gy, const float *restrict x, const float *restrict mean,
                               const float *restrict slope, const float *restrict of_x, const float *restrict shift,
                               int64_t rows, int64_t channels, float *restrict gx) {
    for (int64_t row = 0; row < rows; row++, gy += channels, x += channels, gx += channels)
        for (int64_t c = 0; c < channels; c++)
            gx[c] = gy[c] * slope[c] - (x[c] - mean[c]) * of_x[c] - shift[c];
}

/* --- what batch_norm.py calls ------------------------------------------------------------------------------------- */

/* Sums over all rows: `sums` has 2 * channels numbers for each block; the first block's are the result. */
void batch_norm_squares(Shape shape, const float *x, const float *origin, double *sums) {
    int64_t channels = shape.channels;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < shape.blocks; block++) {
        int64_t first = first_row(shape, block);
        double *here = sums + block * 2 * channels;
        for (int64_t c = 0; c < 2 * channels; c++)
            here[c] = 0;
        add_squares(x + first * channels, origin, first_row(shape, block + 1) - first, channels, here, here + channels);
    }
    add_up(shape, sums);
}

void batch_norm_products(Shape shape, const float *gy, const float *x, const float *mean, double *sums) {
    int64_t channels = shape.channels;
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < shape.blocks; block++) {
        int64_t first = first_row(shape, block), at = first * channels;
        double *here = sums + block * 2 * channels;
        for (int64_t c = 0; c < 2 * channels; c++)
            here[c] = 0;
        add_products(gy + at, x + at, mean, first_row(shape, block + 1) - first, channels, here, here + channels);
    }
    add_up(shape, sums);
}

/* y = (x - mean) * slope + shift */
void batch_norm_normalize(Shape shape, const float *x, const float *mean, const float *slope, const float *shift,
                          float *y) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < shape.blocks; block++) {
        int64_t first = first_row(shape, block), at = first * shape.channels;
        normalize_rows(x + at, mean, slope, shift, first_row(shape, block + 1) - first, shape.channels, y + at);
    }
}

/* gx = gy * slope - (x - mean) * of_x - shift */
void batch_norm_differentiate(Shape shape, const float *gy, const float *x, const float *mean, const float *slope,
                              const float *of_x, const float *shift, float *gx) {
#pragma omp parallel for schedule(static)
    for (int64_t block = 0; block < shape.blocks; block++) {
        int64_t first = first_row(shape, block), at = first * shape.channels;
        differentiate_rows(gy + at, x + at, mean, slope, of_x, shift, first_row(shape, block + 1) - first,
                           shape.channels, gx + at);
    }
}
