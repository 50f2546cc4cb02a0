"""Matrices as lists of rows."""


def shape(matrix):
    """Rows and columns."""
    return [len(matrix), len(matrix[0]) if matrix else 0]


def transpose(matrix):
    """Rows become columns."""
    rows, columns = shape(matrix)
    return [[matrix[row][column] for row in range(rows)] for column in range(columns)]


def multiply(one, other):
    """The product; ValueError where the shapes do not fit."""
    if shape(one)[1] != shape(other)[0]:
        raise ValueError("the shapes do not fit")
    product = []
    for row in one:
        line = []
        for column in transpose(other):
            total = 0
            for left, right in zip(row, column, strict=True):
                total += left * right
            line.append(total)
        product.append(line)
    return product


def trace(matrix):
    """The sum of the diagonal."""
    return sum(matrix[place][place] for place in range(min(shape(matrix))))


def rotate(matrix):
    """Turned by a quarter to the right."""
    rows, columns = shape(matrix)
    return [[matrix[rows - 1 - row][column] for row in range(rows)] for column in range(columns)]


def border(matrix):
    """The sum of the entries at the edge."""
    rows, columns = shape(matrix)
    total = 0
    for row in range(rows):
        for column in range(columns):
            if row in (0, rows - 1) or column in (0, columns - 1):
                total += matrix[row][column]
    return total


def symmetric(matrix):
    """Whether it is square, and equal to its transpose."""
    rows, columns = shape(matrix)
    return rows == columns and transpose(matrix) == matrix
