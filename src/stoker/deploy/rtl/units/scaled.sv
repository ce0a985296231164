// BY * (x - ZERO) by shifts and additions, three registers deep: a constant needs no multiplier. BY is written in
// signed digits, of which a third are not 0 on average (Reitwiesner, 1960).
module scaled #(
    parameter int IN_W = 8,
    parameter int IN_SIGNED = 1,
    parameter int OUT_W = 24,
    parameter int BY = 1,
    parameter int ZERO = 0
) (
    input  logic                    clk,
    input  logic [IN_W-1:0]         x,
    output logic signed [OUT_W-1:0] y
);
    localparam int DIGITS = 18;
    localparam int SIZE = (BY < 0) ? -BY : BY;
    localparam logic [DIGITS-1:0] TRIPLE = DIGITS'(3 * SIZE);
    localparam logic [DIGITS-1:0] SINGLE = DIGITS'(SIZE);
    localparam logic [DIGITS-1:0] PLUS = (TRIPLE & ~SINGLE) >> 1;
    localparam logic [DIGITS-1:0] MINUS = (SINGLE & ~TRIPLE) >> 1;
    localparam int HALF = 8;

    logic signed [OUT_W-1:0] centred, low, high, low_sum, high_sum;

    always_comb begin
        low_sum = '0;
        high_sum = '0;
        for (int i = 0; i < DIGITS; i++) begin
            if (i < HALF) begin
                if (PLUS[i]) low_sum = low_sum + (centred <<< i);
                if (MINUS[i]) low_sum = low_sum - (centred <<< i);
            end else begin
                if (PLUS[i]) high_sum = high_sum + (centred <<< i);
                if (MINUS[i]) high_sum = high_sum - (centred <<< i);
            end
        end
    end

    always_ff @(posedge clk) begin
        centred <= ((IN_SIGNED != 0) ? OUT_W'($signed(x)) : OUT_W'($signed({1'b0, x}))) - OUT_W'(ZERO);
        low <= low_sum;
        high <= high_sum;
        y <= (BY < 0) ? -(low + high) : low + high;
    end
endmodule
